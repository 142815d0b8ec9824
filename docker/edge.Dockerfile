# The proxy of the edge: Debian's nginx, which includes the modules for HTTP/2 and gRPC. Configuration and certificates
# are mounted (docker/compose.edge.yaml, deploy/k8s/overlays/edge):
#
#   docker build --tag quire-edge --file docker/edge.Dockerfile docker
ARG BASE=debian:bookworm-slim
FROM ${BASE}
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends nginx \
    && apt-get clean && rm -rf /var/lib/apt/lists/*
ENTRYPOINT ["/usr/sbin/nginx", "-c", "/etc/quire-edge/nginx.conf", "-g", "daemon off;"]
STOPSIGNAL SIGQUIT
EXPOSE 8443
USER 10002:10002
