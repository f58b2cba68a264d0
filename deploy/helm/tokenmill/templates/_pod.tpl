{{/*
The specification of a pod with one container. It takes
  root, component   of the release, and the role
  values            nodeSelector, tolerations, affinity, resources, env of the role
  target, args      the image and what its entry point gets
  databaseKey, grace
  settings          "map" for the ConfigMap, "list" for variables
and, where a role has them, command, environment, ports, probes, mounts, volumes and initContainers (YAML), preStopSeconds, restart, seccomp, spread.
*/}}
{{- define "tokenmill.pod" -}}
{{- $values := .root.Values -}}
{{- with .restart }}
restartPolicy: {{ . }}
{{- end }}
automountServiceAccountToken: false
{{- with $values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
enableServiceLinks: false # a Service called tokenmill-metrics would set TOKENMILL_METRICS_PORT
shareProcessNamespace: true # the pause container reaps orphans, as init: true does in docker-compose.yml
terminationGracePeriodSeconds: {{ .grace }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {{ .seccomp | default (dict "type" "RuntimeDefault") | toJson }}
{{- with $values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- if .spread }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tokenmill.selector" . | nindent 8 }}
{{- end }}
{{- with .initContainers }}
initContainers:
{{ . | indent 2 }}
{{- end }}
containers:
  - name: {{ .component }}
    {{- include "tokenmill.container" . | nindent 4 }}
volumes:
  - name: tmp
    emptyDir: {}
{{- with $values.storage.claim }}
  - name: objects
    persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- with .volumes }}
{{ . | indent 2 }}
{{- end }}
{{- with $values.extraVolumes }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{- define "tokenmill.container" -}}
{{- $values := .root.Values -}}
image: {{ include "tokenmill.image" . | quote }}
imagePullPolicy: {{ $values.image.pullPolicy }}
{{- with .command }}
command: {{ toJson . }}
{{- end }}
args: {{ toJson .args }}
env:
  {{- include "tokenmill.services" . | nindent 2 }}
{{- with .environment }}
{{ . | indent 2 }}
{{- end }}
{{- if eq .settings "list" }}
  {{- include "tokenmill.settings" . | nindent 2 }}
{{- end }}
{{- with .values.env }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- $secret := include "tokenmill.storeSecret" . }}
{{- $hasMap := and (eq .settings "map") $values.settings }}
{{- if or $hasMap $secret }}
envFrom:
  {{- if $hasMap }}
  - configMapRef: {name: {{ include "tokenmill.fullname" .root }}-settings}
  {{- end }}
  {{- with $secret }}
  - secretRef: {name: {{ . }}}
  {{- end }}
{{- end }}
{{- with .ports }}
ports: {{ toJson . }}
{{- end }}
{{- with .probes }}
{{ . }}
{{- end }}
{{- with .preStopSeconds }}
lifecycle:
  preStop: # until proxies have heard that this pod ends
    sleep: {seconds: {{ . }}}
{{- end }}
{{- with .values.resources }}
resources: {{ toJson . }}
{{- end }}
securityContext:
  {{- include "tokenmill.rights" . | nindent 2 }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
{{- if $values.storage.claim }}
  - name: objects
    mountPath: {{ include "tokenmill.objects" . }}
  {{- if eq .component "prepare" }}
    readOnly: true
  - name: objects
    mountPath: {{ include "tokenmill.objects" . }}/prepared
    subPath: prepared
  {{- end }}
{{- end }}
{{- with .mounts }}
{{ . | indent 2 }}
{{- end }}
{{- with $values.extraVolumeMounts }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{/* Rights of a container. */}}
{{- define "tokenmill.rights" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
