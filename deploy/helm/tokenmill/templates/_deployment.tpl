{{/* A Deployment of a role. Takes what tokenmill.pod takes, and name, replicas (none where something else sets it), strategy, deadline, checksum. */}}
{{- define "tokenmill.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  labels:
    {{- include "tokenmill.labels" . | nindent 4 }}
spec:
  {{- if not (kindIs "invalid" .replicas) }}
  replicas: {{ .replicas }}
  {{- end }}
  {{- with .deadline }}
  progressDeadlineSeconds: {{ . }}
  {{- end }}
  strategy:
    rollingUpdate: {{ toJson .strategy }}
  selector:
    matchLabels:
      {{- include "tokenmill.selector" . | nindent 6 }}
  template:
    metadata:
      labels: # no version: a model is not loaded again for a chart that changes only other objects
        {{- include "tokenmill.selector" . | nindent 8 }}
      annotations:
        checksum/settings: {{ toJson .root.Values.settings | sha256sum }}
        {{- with .checksum }}
        checksum/chat-template: {{ . }}
        {{- end }}
        {{- with .values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "tokenmill.pod" . | nindent 6 }}
{{- end }}
