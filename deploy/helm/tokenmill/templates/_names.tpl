{{/* The prefix of all names: the release, with the chart's name unless it has that already. */}}
{{- define "tokenmill.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{/* Labels that select the pods of a component. Takes root and component, and model for workers. */}}
{{- define "tokenmill.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .model }}
tokenmill/model: {{ . }}
{{- end }}
{{- end }}

{{/* Labels of an object, as above. */}}
{{- define "tokenmill.labels" -}}
{{ include "tokenmill.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Reference of an image. Takes root and target: server, workerCpu or workerCuda. */}}
{{- define "tokenmill.image" -}}
{{- $image := index .root.Values.image .target -}}
{{- if $image.digest -}}
{{ .root.Values.image.repository }}@{{ $image.digest }}
{{- else -}}
{{ .root.Values.image.repository }}:{{ $image.tag | default (printf "%s-%s" .root.Chart.AppVersion (kebabcase .target)) }}
{{- end }}
{{- end }}

{{/* A model's values with the defaults below them. Takes root and key. */}}
{{- define "tokenmill.model" -}}
{{- $model := mergeOverwrite (deepCopy .root.Values.defaults) (index .root.Values.models .key | default dict) -}}
{{- toYaml (merge (dict "name" ($model.name | default .key)) $model) -}}
{{- end }}
