{{/* Combinations of values that the schema cannot express, each with the remedy. */}}
{{- define "weir.checks" -}}
{{- $values := .Values -}}
{{- if and $values.limits.existingConfigMap $values.limits.files -}}
{{- fail "limits.existingConfigMap and limits.files exclude each other: add the files to the ConfigMap, or leave existingConfigMap empty" -}}
{{- end -}}
{{- if $values.controlPlane.enabled -}}
{{- if or $values.limits.existingConfigMap $values.limits.files -}}
{{- fail "controlPlane.enabled replaces files of limits: leave limits.files and limits.existingConfigMap empty" -}}
{{- end -}}
{{- if or (not $values.controlPlane.address) (not $values.controlPlane.nodeId) -}}
{{- fail "controlPlane.enabled needs controlPlane.address (host:port) and controlPlane.nodeId" -}}
{{- end -}}
{{- end -}}

{{- $external := eq $values.redis.mode "external" -}}
{{- if $external -}}
{{- include "weir.redis.check" (list "redis.external" $values.redis.external) -}}
{{- if $values.redis.perSecond.enabled -}}
{{- include "weir.redis.check" (list "redis.perSecond" $values.redis.perSecond) -}}
{{- end -}}
{{- else -}}
{{- if $values.redis.perSecond.enabled -}}
{{- fail "redis.perSecond is a second Redis: it needs redis.mode: external" -}}
{{- end -}}
{{- if $values.redis.tls.enabled -}}
{{- fail "redis.tls needs redis.mode: external; the bundled Redis speaks plaintext, and only pods of Weir reach it" -}}
{{- end -}}
{{- if $values.redis.external.addresses -}}
{{- fail "redis.external.addresses is set, but redis.mode is not external" -}}
{{- end -}}
{{- end -}}

{{- if $values.tls.enabled -}}
{{- if $values.tls.certManager.enabled -}}
{{- if not $values.tls.certManager.issuerRef.name -}}
{{- fail "tls.certManager needs tls.certManager.issuerRef.name, an Issuer or ClusterIssuer of yours" -}}
{{- end -}}
{{- else if not $values.tls.secretName -}}
{{- fail "tls.enabled needs tls.secretName (a Secret with tls.crt and tls.key) or tls.certManager" -}}
{{- end -}}
{{- else if or $values.tls.certManager.enabled $values.tls.clients.caSecret -}}
{{- fail "tls.certManager and tls.clients need tls.enabled" -}}
{{- end -}}
{{- if and $values.tls.clients.name (not $values.tls.clients.caSecret) -}}
{{- fail "tls.clients.name needs tls.clients.caSecret: without authorities no certificate is verified" -}}
{{- end -}}

{{- if and $values.autoscaling.enabled (lt (int $values.autoscaling.maxReplicas) (int $values.autoscaling.minReplicas)) -}}
{{- fail "autoscaling.maxReplicas is less than autoscaling.minReplicas" -}}
{{- end -}}
{{- with $values.autoscaling -}}
{{- if and .enabled (not .targetCPUUtilizationPercentage) (not .podMetrics) (not .metrics) -}}
{{- fail "autoscaling needs a metric: targetCPUUtilizationPercentage, podMetrics or metrics" -}}
{{- end -}}
{{- end -}}
{{- if and $values.metrics.serviceMonitor.enabled $values.metrics.podMonitor.enabled -}}
{{- fail "metrics.serviceMonitor and metrics.podMonitor would scrape each pod twice: enable one" -}}
{{- end -}}
{{- if and $values.networkPolicy.egress.enabled (or $external $values.controlPlane.enabled) (not $values.networkPolicy.egress.rules) -}}
{{- fail "networkPolicy.egress would cut Weir off from its Redis or its control plane: name them in networkPolicy.egress.rules" -}}
{{- end -}}

{{- $drain := include "weir.text" (get $values.settings "DRAIN_DELAY" | default "5s") -}}
{{- if regexMatch "^([0-9]+m)?([0-9]+s)?$" $drain -}}
{{- $minutes := regexFind "^[0-9]+m" $drain | trimSuffix "m" | int -}}
{{- $least := add (mul 60 $minutes) (regexFind "[0-9]+s$" $drain | trimSuffix "s" | int) 10 -}}
{{- if lt (int $values.terminationGracePeriodSeconds) (int $least) -}}
{{- fail (printf "terminationGracePeriodSeconds is less than %d: DRAIN_DELAY (%s) and 10 s for requests in flight" (int $least) $drain) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* (list "redis.external" VALUES) */}}
{{- define "weir.redis.check" -}}
{{- $name := index . 0 -}}
{{- $redis := index . 1 -}}
{{- if not $redis.addresses -}}
{{- fail (printf "%s.addresses is empty: name host:port of your Redis" $name) -}}
{{- end -}}
{{- if and (eq $redis.type "single") (gt (len $redis.addresses) 1) -}}
{{- fail (printf "%s.type is single, which has one address; several are of a Redis Cluster (cluster) or of Sentinels (sentinel)" $name) -}}
{{- end -}}
{{- if and (eq $redis.type "sentinel") (not $redis.sentinelMaster) -}}
{{- fail (printf "%s.sentinelMaster is empty: the name of the primary in the Sentinels' configuration" $name) -}}
{{- end -}}
{{- if and (ne $redis.type "sentinel") (or $redis.sentinelMaster $redis.sentinelPasswordSecret) -}}
{{- fail (printf "%s has settings of Sentinels, but its type is %s" $name $redis.type) -}}
{{- end -}}
{{- if and (eq $redis.type "cluster") (ne (int $redis.database) 0) -}}
{{- fail (printf "%s.database: a Redis Cluster has database 0 only" $name) -}}
{{- end -}}
{{- if and $redis.username (not $redis.passwordSecret) -}}
{{- fail (printf "%s.username needs %s.passwordSecret" $name $name) -}}
{{- end -}}
{{- end -}}
