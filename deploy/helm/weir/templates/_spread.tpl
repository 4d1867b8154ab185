{{- define "weir.spread" -}}
{{- $keys := dict "zones" "topology.kubernetes.io/zone" "hosts" "kubernetes.io/hostname" -}}
{{- $spread := dict -}}
{{- range $name := list "zones" "hosts" -}}
{{- with get $.Values.topologySpread $name -}}
{{- $_ := set $spread $name . -}}
{{- end -}}
{{- end -}}
{{- if $spread -}}
topologySpreadConstraints:
  {{- range $name := list "zones" "hosts" }}
  {{- with get $spread $name }}
  - maxSkew: 1
    topologyKey: {{ get $keys $name }}
    whenUnsatisfiable: {{ . }}
    labelSelector:
      matchLabels: {{- include "weir.selector" (list $ "service") | nindent 8 }}
    # During a rollout the pods of each version are spread by themselves.
    matchLabelKeys: [pod-template-hash]
  {{- end }}
  {{- end }}
{{- end -}}
{{- end -}}
