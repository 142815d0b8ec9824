{{/* Name of the Deployment, the Services and the rest: the release, with `quire` in it. */}}
{{- define "quire.name" -}}
{{- if contains "quire" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-quire{{ end }}
{{- end }}

{{- define "quire.selector" -}}
app.kubernetes.io/name: quire
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "quire.labels" -}}
{{ include "quire.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "quire.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (ternary "cuda" "latest" (gt (int .Values.gpu.count) 0)) }}
{{- end }}

{{/* Contents of quire.yaml: the keys that the other values set, overridden by those of values.config. */}}
{{- define "quire.config" -}}
{{- $config := dict "model" (dict "path" .Values.model.path) }}
{{- with .Values.model.pull }}
{{- if .name }}
{{- $_ := set $config "model" (dict "path" (ternary .name (printf "%s:%s" .name .gguf) (eq .gguf ""))) }}
{{- end }}
{{- end }}
{{- if .Values.gpu.count }}{{ $_ := set $config "device" (dict "type" "cuda") }}{{ end }}
{{- if .Values.auth.tokensSecret }}
{{- $_ := set $config "auth" (dict "mode" "token" "tokens_file" "/etc/quire-auth/tokens") }}
{{- end }}
{{- if .Values.tls.secret }}
{{- $tls := dict "cert_file" "/etc/quire-tls/tls.crt" "key_file" "/etc/quire-tls/tls.key" }}
{{- with .Values.tls.clientCaKey }}
{{- $_ := set $tls "client_ca_file" (printf "/etc/quire-tls/%s" .) }}
{{- $_ := set $tls "require_client_cert" true }}
{{- end }}
{{- $_ := set $config "tls" $tls }}
{{- end }}
{{- toYaml (mergeOverwrite $config (deepCopy .Values.config)) }}
{{- end }}
