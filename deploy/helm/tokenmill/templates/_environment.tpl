{{/* Where the store is mounted if it is a claim: as in docker-compose.yml. */}}
{{- define "tokenmill.objects" -}}/var/lib/tokenmill/objects{{- end }}

{{/* One variable from a Secret. Takes name, secret and key. */}}
{{- define "tokenmill.secretVariable" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef: {name: {{ .secret }}, key: {{ .key }}}
{{- end }}

{{/* Variables of the services that all roles use. Takes root and databaseKey. */}}
{{- define "tokenmill.services" -}}
{{- $values := .root.Values -}}
{{ include "tokenmill.secretVariable" (dict "name" "TOKENMILL_DATABASE_URL" "secret" $values.database.existingSecret "key" .databaseKey) }}
{{ include "tokenmill.secretVariable" (dict "name" "TOKENMILL_REDIS_URL" "secret" $values.redis.existingSecret "key" $values.redis.key) }}
- name: TOKENMILL_STORAGE_URL
  value: {{ ternary (printf "file://%s" (include "tokenmill.objects" .)) $values.storage.url (ne $values.storage.claim "") | quote }}
{{- end }}

{{/* Settings as variables, for a hook that runs before there is a ConfigMap. Takes root, and values with the env that overrides them. */}}
{{- define "tokenmill.settings" -}}
{{- $own := include "tokenmill.names" .values.env | fromJsonArray }}
{{- range $name, $value := .root.Values.settings }}
{{- if not (has $name $own) }}
- name: {{ $name }}
  value: {{ include "tokenmill.text" $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Names of a list of variables, as JSON. */}}
{{- define "tokenmill.names" -}}
{{- $names := list -}}
{{- range . }}{{ $names = append $names .name }}{{ end -}}
{{- toJson $names -}}
{{- end }}

{{/* A value as text: a whole number without an exponent. */}}
{{- define "tokenmill.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{/* The store's credentials. Takes root and component. */}}
{{- define "tokenmill.storeSecret" -}}
{{- $storage := .root.Values.storage -}}
{{- if eq .component "prepare" }}{{ $storage.prepareExistingSecret | default $storage.existingSecret }}{{ else }}{{ $storage.existingSecret }}{{ end -}}
{{- end }}
