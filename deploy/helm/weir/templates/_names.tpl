{{/* Names and labels. */}}

{{- define "weir.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- end -}}

{{- define "weir.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "weir.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "weir.configMap" -}}
{{- .Values.limits.existingConfigMap | default (printf "%s-config" (include "weir.name" .)) -}}
{{- end -}}

{{- define "weir.tlsSecret" -}}
{{- .Values.tls.secretName | default (printf "%s-tls" (include "weir.name" .)) -}}
{{- end -}}

{{- define "weir.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The labels that select the objects of one component: (list . "service"). */}}
{{- define "weir.selector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "weir.labels" -}}
{{- $root := index . 0 -}}
{{ include "weir.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A value as text. Helm reads numbers of values.yaml as floats, and would write 2000000 as 2e+06. */}}
{{- define "weir.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else -}}
{{- . | toString -}}
{{- end -}}
{{- end -}}

{{/* A file of the repository. They are symbolic links, because Helm reads no file outside of a chart, and a copy could differ; `helm package`
follows them. Where a tool left them out, this fails instead of rendering nothing. */}}
{{- define "weir.file" -}}
{{- $root := index . 0 -}}
{{- $text := $root.Files.Get (index . 1) -}}
{{- if not $text -}}
{{- fail (printf "%s is missing in the chart: it is a symbolic link to a file of Weir's repository. Copy the chart with `cp -rL`, or use a package that `helm package` made" (index . 1)) -}}
{{- end -}}
{{- $text -}}
{{- end -}}
