{{/* Variables, volumes and mounts of the container. */}}

{{/* The variables that values of the chart set. */}}
{{- define "weir.environment" -}}
{{- if .Values.controlPlane.enabled -}}
{{- include "weir.environment.controlPlane" . }}
{{- else -}}
# Limits are read from $RUNTIME_ROOT/$RUNTIME_SUBDIRECTORY/config, as by envoyproxy/ratelimit.
- { name: RUNTIME_ROOT, value: /data }
- { name: RUNTIME_SUBDIRECTORY, value: ratelimit }
- { name: RUNTIME_APPDIRECTORY, value: config }
# Kubernetes keeps the files of a ConfigMap in hidden folders beside their links.
- { name: RUNTIME_IGNOREDOTFILES, value: "true" }
{{- end }}
- { name: BACKEND_TYPE, value: {{ ternary "memory" "redis" (eq .Values.redis.mode "none") }} }
{{- if eq .Values.redis.mode "bundled" }}
- { name: REDIS_URL, value: {{ printf "%s-redis:6379" (include "weir.name" .) | quote }} }
{{- else if eq .Values.redis.mode "external" }}
{{- include "weir.environment.redis" (list "REDIS" .Values.redis.external "/secrets/redis") }}
{{- if .Values.redis.perSecond.enabled }}
- { name: REDIS_PERSECOND, value: "true" }
{{- include "weir.environment.redis" (list "REDIS_PERSECOND" .Values.redis.perSecond "/secrets/redis-per-second") }}
{{- if .Values.redis.perSecond.tls }}
- { name: REDIS_PERSECOND_TLS, value: "true" }
{{- end }}
{{- end }}
{{- with .Values.redis.tls }}
{{- if .enabled }}
- { name: REDIS_TLS, value: "true" }
{{- end }}
{{- if .caSecret }}
- { name: REDIS_TLS_CACERT, value: /secrets/redis-authorities/ca.crt }
{{- end }}
{{- if .clientSecret }}
- { name: REDIS_TLS_CLIENT_CERT, value: /secrets/redis-client/tls.crt }
- { name: REDIS_TLS_CLIENT_KEY, value: /secrets/redis-client/tls.key }
{{- end }}
{{- if .skipHostnameVerification }}
- { name: REDIS_TLS_SKIP_HOSTNAME_VERIFICATION, value: "true" }
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.redis.keyPrefix }}
- { name: CACHE_KEY_PREFIX, value: {{ . | quote }} }
{{- end }}
{{- if ne .Values.redis.mode "none" }}
# For on_store_failure: local, which admits this replica's share of a limit.
- { name: REPLICAS, value: {{ include "weir.replicas" . | quote }} }
{{- end }}
{{- if .Values.tls.enabled }}
- { name: GRPC_SERVER_USE_TLS, value: "true" }
- { name: GRPC_SERVER_TLS_CERT, value: /secrets/grpc/tls.crt }
- { name: GRPC_SERVER_TLS_KEY, value: /secrets/grpc/tls.key }
{{- if .Values.tls.clients.caSecret }}
- { name: GRPC_CLIENT_TLS_CACERT, value: /secrets/grpc-clients/ca.crt }
{{- end }}
{{- with .Values.tls.clients.name }}
- { name: GRPC_CLIENT_TLS_SAN, value: {{ . | quote }} }
{{- end }}
{{- end }}
{{- $verifies := and .Values.tls.enabled .Values.tls.clients.caSecret }}
{{- if or (eq (toString .Values.httpJson) "false") (and (eq (toString .Values.httpJson) "auto") $verifies) }}
- { name: HTTP_JSON, value: "off" }
{{- end }}
{{- if not .Values.debug.enabled }}
- { name: DEBUG_ENABLED, value: "false" }
{{- else if .Values.debug.listen }}
# All addresses, of IPv6 and IPv4.
- { name: DEBUG_HOST, value: "::" }
{{- end }}
{{- if and .Values.debug.enabled .Values.debug.tokenSecret }}
- { name: ADMIN_TOKEN_FILE, value: /secrets/admin/tokens }
{{- end }}
{{- with .Values.metrics.reference }}
{{- if .enabled }}
- { name: USE_PROMETHEUS, value: "true" }
- { name: PROMETHEUS_ADDR, value: {{ printf ":%d" (int .port) | quote }} }
- { name: PROMETHEUS_PATH, value: {{ .path | quote }} }
{{- end }}
{{- end }}
{{- end -}}

{{/* The replicas among which on_store_failure: local divides a limit. */}}
{{- define "weir.replicas" -}}
{{- if .Values.localReplicas -}}
{{- include "weir.text" .Values.localReplicas -}}
{{- else if .Values.headlessService.enabled -}}
{{- printf "dns:%s-headless" (include "weir.name" .) -}}
{{- else if .Values.autoscaling.enabled -}}
{{- int .Values.autoscaling.maxReplicas -}}
{{- else -}}
{{- max 1 (int .Values.replicaCount) -}}
{{- end -}}
{{- end -}}

{{/* (list PREFIX VALUES FOLDER) */}}
{{- define "weir.environment.redis" -}}
{{- $prefix := index . 0 -}}
{{- $redis := index . 1 -}}
{{- $folder := index . 2 -}}
{{- $addresses := $redis.addresses -}}
{{- if ne (int $redis.database) 0 -}}
{{- $addresses = prepend (rest $addresses) (printf "redis://%s/%d" (first $addresses) (int $redis.database)) -}}
{{- end -}}
{{- if eq $redis.type "sentinel" -}}
{{- $addresses = prepend $addresses $redis.sentinelMaster -}}
{{- end }}
- { name: {{ $prefix }}_TYPE, value: {{ $redis.type }} }
- { name: {{ $prefix }}_URL, value: {{ join "," $addresses | quote }} }
{{- with $redis.username }}
- { name: {{ $prefix }}_AUTH, value: {{ printf "%s:" . | quote }} }
{{- end }}
{{- if $redis.passwordSecret }}
- { name: {{ $prefix }}_AUTH_FILE, value: {{ $folder }}/password }
{{- end }}
{{- if $redis.sentinelPasswordSecret }}
- { name: {{ $prefix }}_SENTINEL_AUTH_FILE, value: {{ $folder }}-sentinel/password }
{{- end }}
{{- end -}}

{{- define "weir.environment.controlPlane" -}}
{{- with .Values.controlPlane -}}
- { name: CONFIG_TYPE, value: {{ .type }} }
- { name: CONFIG_GRPC_XDS_SERVER_URL, value: {{ .address | quote }} }
- { name: CONFIG_GRPC_XDS_NODE_ID, value: {{ .nodeId | quote }} }
{{- if .cache.enabled }}
# A container that restarts while the control plane is away has the last limits at once.
- { name: CONFIG_GRPC_XDS_CACHE_FILE, value: /var/cache/weir/limits }
{{- end }}
{{- if .tls.enabled }}
- { name: CONFIG_GRPC_XDS_SERVER_USE_TLS, value: "true" }
{{- if .tls.caSecret }}
- { name: CONFIG_GRPC_XDS_SERVER_TLS_CACERT, value: /secrets/control-plane-authorities/ca.crt }
{{- end }}
{{- with .tls.serverName }}
- { name: CONFIG_GRPC_XDS_SERVER_TLS_SAN, value: {{ . | quote }} }
{{- end }}
{{- if .tls.clientSecret }}
- { name: CONFIG_GRPC_XDS_CLIENT_TLS_CERT, value: /secrets/control-plane-client/tls.crt }
- { name: CONFIG_GRPC_XDS_CLIENT_TLS_KEY, value: /secrets/control-plane-client/tls.key }
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
The Secrets that are mounted, as a list of objects: name of the volume, path, name of the Secret, and its keys with the names of their files.
Whole folders, because Kubernetes never updates a file that is mounted by subPath.
*/}}
{{- define "weir.secrets" -}}
{{- $found := list -}}
{{- $pair := dict "tls.crt" "tls.crt" "tls.key" "tls.key" -}}
{{- if .Values.tls.enabled -}}
{{- $found = append $found (dict "volume" "grpc" "secret" (include "weir.tlsSecret" .) "files" $pair) -}}
{{- with .Values.tls.clients -}}
{{- if .caSecret -}}
{{- $found = append $found (dict "volume" "grpc-clients" "secret" .caSecret "files" (dict .caKey "ca.crt")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.debug -}}
{{- if and .enabled .tokenSecret -}}
{{- $found = append $found (dict "volume" "admin" "secret" .tokenSecret "files" (dict .tokenKey "tokens")) -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.redis.mode "external" -}}
{{- $servers := list (dict "volume" "redis" "values" .Values.redis.external) -}}
{{- if .Values.redis.perSecond.enabled -}}
{{- $servers = append $servers (dict "volume" "redis-per-second" "values" .Values.redis.perSecond) -}}
{{- end -}}
{{- range $servers -}}
{{- $volume := .volume -}}
{{- with .values -}}
{{- if .passwordSecret -}}
{{- $found = append $found (dict "volume" $volume "secret" .passwordSecret "files" (dict .passwordKey "password")) -}}
{{- end -}}
{{- if .sentinelPasswordSecret -}}
{{- $found = append $found (dict "volume" (printf "%s-sentinel" $volume) "secret" .sentinelPasswordSecret "files" (dict .sentinelPasswordKey "password")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.redis.tls -}}
{{- if .caSecret -}}
{{- $found = append $found (dict "volume" "redis-authorities" "secret" .caSecret "files" (dict .caKey "ca.crt")) -}}
{{- end -}}
{{- if .clientSecret -}}
{{- $found = append $found (dict "volume" "redis-client" "secret" .clientSecret "files" $pair) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.controlPlane.enabled .Values.controlPlane.tls.enabled -}}
{{- with .Values.controlPlane.tls -}}
{{- if .caSecret -}}
{{- $found = append $found (dict "volume" "control-plane-authorities" "secret" .caSecret "files" (dict .caKey "ca.crt")) -}}
{{- end -}}
{{- if .clientSecret -}}
{{- $found = append $found (dict "volume" "control-plane-client" "secret" .clientSecret "files" $pair) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{- define "weir.volumes" -}}
{{- if not .Values.controlPlane.enabled }}
- name: config
  configMap: { name: {{ include "weir.configMap" . }} }
{{- else if .Values.controlPlane.cache.enabled }}
- name: cache
  emptyDir: { sizeLimit: {{ .Values.controlPlane.cache.sizeLimit }} }
{{- end }}
{{- range include "weir.secrets" . | fromYamlArray }}
- name: {{ .volume }}
  secret:
    secretName: {{ .secret }}
    # Readable for the group of Weir only (0440).
    defaultMode: 288
    items:
      {{- range $key, $file := .files }}
      - { key: {{ $key | quote }}, path: {{ $file }} }
      {{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "weir.mounts" -}}
{{- if not .Values.controlPlane.enabled }}
# The whole folder: Kubernetes never updates a file that is mounted by subPath.
- { name: config, mountPath: /data/ratelimit/config, readOnly: true }
{{- else if .Values.controlPlane.cache.enabled }}
- { name: cache, mountPath: /var/cache/weir }
{{- end }}
{{- range include "weir.secrets" . | fromYamlArray }}
- { name: {{ .volume }}, mountPath: /secrets/{{ .volume }}, readOnly: true }
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}
