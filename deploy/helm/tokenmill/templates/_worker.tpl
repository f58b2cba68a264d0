{{/* Arguments of a worker, as JSON. Takes the model. */}}
{{- define "tokenmill.workerArgs" -}}
{{- $args := list "worker" "--ready-file" "/tmp/ready" "--model" .name -}}
{{- if .url -}}
{{- $args = concat $args (list "--engine" "openai" "--url" .url) -}}
{{- with .serverModel }}{{ $args = concat $args (list "--server-model" .) }}{{ end -}}
{{- with .tokenizer }}{{ $args = concat $args (list "--tokenizer" .) }}{{ end -}}
{{- if .keySecret.existingSecret }}{{ $args = concat $args (list "--key-file" "/run/tokenmill/key") }}{{ end -}}
{{- else -}}
{{- $args = concat $args (list "--path" (ternary (clean (print "/models/" .path)) .path (ne .claim ""))) -}}
{{- if .chatTemplate }}{{ $args = concat $args (list "--chat-template" "/run/tokenmill/chat/template.jinja") }}{{ end -}}
{{- end -}}
{{- range $option, $value := .options -}}
{{- if kindIs "bool" $value -}}
{{- $args = append $args (print (ternary "--" "--no-" $value) $option) -}}
{{- else -}}
{{- $args = concat $args (list (print "--" $option) (include "tokenmill.text" $value)) -}}
{{- end -}}
{{- end -}}
{{- toJson $args -}}
{{- end }}

{{/* Variables of a worker beside those of all roles; with a GPU as in docker-compose.yml. Takes root and model. */}}
{{- define "tokenmill.workerEnvironment" -}}
- {name: TOKENMILL_METRICS_HOST, value: "0.0.0.0"}
- {name: TOKENMILL_METRICS_PORT, value: {{ include "tokenmill.text" .root.Values.metrics.port | quote }}}
{{- if .model.gpus }}
- {name: TRITON_CACHE_DIR, value: /home/tokenmill/.cache/triton}
- {name: TORCHINDUCTOR_CACHE_DIR, value: /home/tokenmill/.cache/inductor}
{{- if not (or (hasKey .root.Values.settings "TOKENMILL_WORKER_CHUNKS") (has "TOKENMILL_WORKER_CHUNKS" (include "tokenmill.names" .model.env | fromJsonArray))) }}
- {name: TOKENMILL_WORKER_CHUNKS, value: "24"} # a large GPU runs 1,024 lines at once; 6 chunks of 64 would leave it half empty
{{- end }}
{{- end }}
{{- if .model.spot }}
- {name: TOKENMILL_DRAIN_SECONDS, value: {{ include "tokenmill.text" .root.Values.spot.drainSeconds | quote }}}
{{- end }}
{{- with .root.Values.hub }}
{{- if .existingSecret }}
{{ include "tokenmill.secretVariable" (dict "name" "HF_TOKEN" "secret" .existingSecret "key" .key) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fills the cache with the kernels that the image has compiled, as Docker fills a new volume. Takes root and target. */}}
{{- define "tokenmill.workerInit" -}}
- name: cache
  image: {{ include "tokenmill.image" . | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [cp, --recursive, --update, /home/tokenmill/.cache/., /cache]
  resources:
    requests: {cpu: 100m, memory: 64Mi}
    limits: {memory: 256Mi}
  securityContext:
    {{- include "tokenmill.rights" . | nindent 4 }}
  volumeMounts:
    - name: cache
      mountPath: /cache
{{- end }}

{{- define "tokenmill.workerMounts" -}}
- name: cache
  mountPath: /home/tokenmill/.cache
{{- if .claim }}
- name: models
  mountPath: /models
  readOnly: true
{{- end }}
{{- if .chatTemplate }}
- name: chat-template
  mountPath: /run/tokenmill/chat
  readOnly: true
{{- end }}
{{- if .keySecret.existingSecret }}
- name: key
  mountPath: /run/tokenmill
  readOnly: true
{{- end }}
{{- end }}

{{/* Takes model and name, of the Deployment. */}}
{{- define "tokenmill.workerVolumes" -}}
- name: cache
{{- if .model.cacheClaim }}
  persistentVolumeClaim: {claimName: {{ .model.cacheClaim }}}
{{- else }}
  emptyDir: {}
{{- end }}
{{- with .model.claim }}
- name: models
  persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
{{- end }}
{{- if .model.chatTemplate }}
- name: chat-template
  configMap: {name: {{ .name }}}
{{- end }}
{{- with .model.keySecret }}
{{- if .existingSecret }}
- name: key
  secret:
    secretName: {{ .existingSecret }}
    items: [{key: {{ .key }}, path: key}]
{{- end }}
{{- end }}
{{- end }}
