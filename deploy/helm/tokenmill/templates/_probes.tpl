{{/* Probes of a role that answers HTTP. Takes port, and the paths ready and alive. A restart loads a model again, so it waits for five misses. */}}
{{- define "tokenmill.probes" -}}
startupProbe:
  {{- include "tokenmill.starts" . | nindent 2 }}
readinessProbe:
  httpGet: {path: {{ .ready }}, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: {{ .alive }}, port: {{ .port }}}
  periodSeconds: 30
  timeoutSeconds: 5
  failureThreshold: 5
{{- end }}

{{/*
When it has started: the ready file of a worker with an engine of its own, whose metrics are there before its model; else life.
A worker of a server is alive while it waits for that server, however long.
*/}}
{{- define "tokenmill.starts" -}}
{{- if .readyFile -}}
exec: {command: [test, -e, {{ .readyFile }}]}
{{- else -}}
httpGet: {path: {{ .alive }}, port: {{ .port }}}
timeoutSeconds: 5
{{- end }}
periodSeconds: 5
failureThreshold: {{ divf (.startupSeconds | default 120) 5 | ceil }}
{{- end }}
