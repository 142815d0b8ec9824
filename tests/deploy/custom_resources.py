"""Schemas of the custom resources that the manifests use. They have the fields of the published definitions that the
manifests set, and no others, so a misspelt field is found:

  InferencePool  inference.networking.k8s.io/v1  gateway-api-inference-extension 1.5.0
  HTTPRoute      gateway.networking.k8s.io/v1    gateway-api 1.5
  ScaledObject   keda.sh/v1alpha1                KEDA 2.20
  ServiceMonitor, PodMonitor  monitoring.coreos.com/v1  prometheus-operator 0.93
"""

NAME = {"type": "string", "minLength": 1, "maxLength": 253}
PORT_NUMBER = {"type": "integer", "minimum": 1, "maximum": 65535}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
PROMETHEUS_DURATION = {"type": "string", "pattern": r"^(0|([0-9]+(y|w|d|h|m|s|ms))+)$"}


def fields(required=(), **properties):
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def items(schema, **limits):
    return {"type": "array", "items": schema, **limits}


SELECTOR = fields(["matchLabels"], matchLabels={**TEXTS, "minProperties": 1})
SCALING = fields(stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600})
ENDPOINT = fields(["port"], port=NAME, path={"type": "string"}, interval=PROMETHEUS_DURATION,
                  scrapeTimeout=PROMETHEUS_DURATION,
                  relabelings=items(fields(targetLabel=NAME, replacement={"type": "string"})))

SPECS = {
    ("inference.networking.k8s.io/v1", "InferencePool"): fields(
        ["selector", "targetPorts"],
        selector=SELECTOR,
        targetPorts=items(fields(["number"], number=PORT_NUMBER), minItems=1, maxItems=8),
        appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
        endpointPickerRef=fields(["name", "port"], name=NAME, port=fields(["number"], number=PORT_NUMBER),
                                 failureMode={"enum": ["FailOpen", "FailClose"]})),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): fields(
        parentRefs=items(fields(["name"], group=NAME, kind=NAME, name=NAME), maxItems=32),
        rules=items(fields(
            matches=items(fields(path=fields(type={"enum": ["Exact", "PathPrefix", "RegularExpression"]},
                                             value={"type": "string", "maxLength": 1024}))),
            backendRefs=items(fields(["name"], group=NAME, kind=NAME, name=NAME), maxItems=16),
            timeouts=fields(request=DURATION)), minItems=1, maxItems=16)),
    ("keda.sh/v1alpha1", "ScaledObject"): fields(
        ["scaleTargetRef", "triggers"],
        scaleTargetRef=fields(["name"], name=NAME),
        minReplicaCount={"type": "integer"}, maxReplicaCount={"type": "integer"}, pollingInterval={"type": "integer"},
        advanced=fields(horizontalPodAutoscalerConfig=fields(behavior=fields(scaleUp=SCALING, scaleDown=SCALING))),
        triggers=items(fields(
            ["type", "metadata"], type={"const": "metrics-api"},
            metricType={"enum": ["AverageValue", "Value"]},
            # The parameters of the scaler `metrics-api`. Their values are texts.
            metadata=fields(["url", "valueLocation", "targetValue"], url=NAME, valueLocation=NAME,
                            format={"enum": ["prometheus", "json", "xml", "yaml"]},
                            aggregateFromKubeServiceEndpoints={"enum": ["true", "false"]},
                            aggregationType={"enum": ["average", "sum", "max", "min"]},
                            targetValue={"type": "string", "pattern": r"^[0-9.]+$"})))),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): fields(
        ["selector", "endpoints"], selector=SELECTOR, endpoints=items(ENDPOINT)),
    ("monitoring.coreos.com/v1", "PodMonitor"): fields(
        ["selector"], selector=SELECTOR, podMetricsEndpoints=items(ENDPOINT)),
}


def schema(api_version, kind):
    """Returns the schema of a resource, or None if it is not a custom one."""
    if (api_version, kind) not in SPECS:
        return None
    return fields(["apiVersion", "kind", "metadata", "spec"], apiVersion=NAME, kind=NAME,
                  metadata=fields(["name"], name=NAME, labels=TEXTS), spec=SPECS[api_version, kind])
