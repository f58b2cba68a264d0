{{/* Notes an error. Takes found and text, and if only, whether it is one. */}}
{{- define "tokenmill.error" -}}
{{- if .if -}}{{- $_ := set .found "errors" (append .found.errors .text) -}}{{- end -}}
{{- end }}

{{- define "tokenmill.checkServices" -}}
{{- $values := .values -}}
{{- include "tokenmill.error" (dict "found" .found "if" (not $values.image.repository) "text"
  "image.repository is empty. Nobody publishes images: build them, push them, and name their repository, as registry.example.com/tokenmill.") -}}
{{- include "tokenmill.error" (dict "found" .found "if" (not $values.database.existingSecret) "text"
  "database.existingSecret is empty. Name a Secret with the URLs of Postgres.") -}}
{{- include "tokenmill.error" (dict "found" .found "if" (not $values.redis.existingSecret) "text"
  "redis.existingSecret is empty. Name a Secret with the URL of Redis or Valkey.") -}}
{{- $storage := $values.storage -}}
{{- include "tokenmill.error" (dict "found" .found "if" (not (or $storage.url $storage.claim)) "text"
  "storage.url and storage.claim are empty. Name a bucket or a claim.") -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and $storage.url $storage.claim) "text"
  (printf "storage.url is %s and storage.claim is %s: there is one store. Leave one of them empty." $storage.url $storage.claim)) -}}
{{- range $name := list "existingSecret" "prepareExistingSecret" -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (and $storage.claim (index $storage $name)) "text"
  (printf "storage.%s is %s and storage.claim is %s: a claim has no credentials. Leave one of them empty." $name (index $storage $name) $storage.claim)) -}}
{{- end -}}
{{- range $name := list "server" "workerCpu" "workerCuda" -}}
{{- $image := index $values.image $name -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (and $image.tag $image.digest) "text"
  (printf "image.%s.tag is %s and image.%s.digest is %s. Give one of them." $name $image.tag $name $image.digest)) -}}
{{- end -}}
{{- end }}

{{- define "tokenmill.checkApi" -}}
{{- $values := .values -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and $values.ingress.enabled $values.httpRoute.enabled) "text"
  "ingress.enabled and httpRoute.enabled are true. Enable one of them.") -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and $values.ingress.enabled (not $values.ingress.host)) "text"
  "ingress.enabled is true, and ingress.host is empty. Name the host.") -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and $values.httpRoute.enabled (not $values.httpRoute.parentRefs)) "text"
  "httpRoute.enabled is true, and httpRoute.parentRefs is empty. Name the gateway.") -}}
{{- range $name := list "ingress" "httpRoute" -}}
{{- $route := index $values $name -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (and $route.enabled (has "/" $route.paths) (not $values.api.operatorKey.existingSecret)) "text"
  (printf "%s.paths has /, and api.operatorKey.existingSecret is empty: everyone could read /metrics. Name a Secret with a key, or publish /v1 alone." $name)) -}}
{{- end -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and (ne $values.api.service.type "ClusterIP") (not $values.api.operatorKey.existingSecret)) "text"
  (printf "api.service.type is %s, and api.operatorKey.existingSecret is empty: everyone could read /metrics. Name a Secret with a key, or set ClusterIP." $values.api.service.type)) -}}
{{- with $values.api.autoscaling -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (and .enabled (gt (int .minReplicas) (int .maxReplicas))) "text"
  (printf "api.autoscaling.minReplicas is %d and api.autoscaling.maxReplicas is %d. Lower the first or raise the second." (int .minReplicas) (int .maxReplicas))) -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (and .enabled (not (dig "requests" "cpu" "" $values.api.resources))) "text"
  "api.autoscaling.enabled is true, and api.resources.requests.cpu is empty, of which api.autoscaling.cpuPercent is a part. Set it.") -}}
{{- end -}}
{{- end }}

{{- define "tokenmill.checkNetwork" -}}
{{- $network := .values.networkPolicy -}}
{{- range $name := list "apiFrom" "metricsFrom" "egress" -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (and (index $network $name) (not $network.enabled)) "text"
  (printf "networkPolicy.%s is set, and networkPolicy.enabled is false. Enable it, or leave it empty." $name)) -}}
{{- end -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and .values.metrics.podMonitor.enabled $network.enabled (not $network.metricsFrom)) "text"
  "metrics.podMonitor.enabled is true, and networkPolicy.metricsFrom is empty: nothing could scrape. Name the peers that Prometheus runs as.") -}}
{{- end }}

{{- define "tokenmill.checkRoles" -}}
{{- $values := .values -}}
{{- range $name := list "migrations" "api" "control" "dispatch" "prepare" -}}
{{- include "tokenmill.checkEnvironment" (dict "values" $values "found" $.found "at" $name "env" (index $values $name "env")) -}}
{{- end -}}
{{- include "tokenmill.checkGrace" (dict "values" $values "found" .found "at" "prepare" "grace" $values.prepare.graceSeconds) -}}
{{- $type := $values.prepare.seccompProfile.type -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and (eq (get $values.settings "TOKENMILL_READER_ISOLATION" | toString) "required") (eq $type "RuntimeDefault")) "text"
  "settings.TOKENMILL_READER_ISOLATION is required, and prepare.seccompProfile.type is RuntimeDefault, which allows no unshare: no prepare worker would start. Give a profile that allows it, or set best.") -}}
{{- $longest := printf "%s-dispatch" (include "tokenmill.fullname" .root) -}}
{{- include "tokenmill.checkName" (dict "root" .root "found" .found "name" $longest "at" "") -}}
{{- range $key, $_ := $values.models -}}
{{- include "tokenmill.checkName" (dict "root" $.root "found" $.found "at" (printf " or the key of models.%s" $key)
  "name" (printf "%s-worker-%s" (include "tokenmill.fullname" $.root) $key)) -}}
{{- end -}}
{{- end }}

{{- define "tokenmill.checkVolumes" -}}
{{- range .values.extraVolumes -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (has .name (list "tmp" "objects" "cache" "models" "chat-template" "key")) "text"
  (printf "extraVolumes has the name %s, which is a volume of the chart. Choose another." .name)) -}}
{{- end -}}
{{- end }}

{{/* Pods have 17 characters more, KEDA's autoscalers 9, and 63 are allowed. */}}
{{- define "tokenmill.checkName" -}}
{{- include "tokenmill.error" (dict "found" .found "if" (gt (len .name) 46) "text"
  (printf "%s has %d characters, and 46 are allowed, as names of pods have 17 more. Shorten the release's name %s%s." .name (len .name) .root.Release.Name .at)) -}}
{{- end }}

{{/* Takes at, the values' place, and grace; for spot also drain. 10 s more is what `tokenmill up` adds. */}}
{{- define "tokenmill.checkGrace" -}}
{{- $settings := .values.settings -}}
{{- $drain := ternary (get $settings "TOKENMILL_DRAIN_SECONDS") 20 (hasKey $settings "TOKENMILL_DRAIN_SECONDS") -}}
{{- $at := "settings.TOKENMILL_DRAIN_SECONDS" -}}
{{- if hasKey . "drain" }}{{ $drain = .drain }}{{ $at = printf "%s.drainSeconds" .at }}{{ end -}}
{{- include "tokenmill.error" (dict "found" .found "if" (lt (float64 .grace) (addf $drain 10)) "text"
  (printf "%s.graceSeconds is %v and %s is %v: a stop takes 10 s more than that. Raise the first or lower the second." .at .grace $at $drain)) -}}
{{- end }}

{{/* What the chart sets in containers itself, and from which value. */}}
{{- define "tokenmill.reserved" -}}
TOKENMILL_DATABASE_URL: database.existingSecret
TOKENMILL_DATABASE_PREPARE_URL: database.existingSecret
TOKENMILL_DATABASE_OWNER_URL: database.existingSecret
TOKENMILL_DATABASE_SCALER_URL: keda.existingSecret
TOKENMILL_REDIS_URL: redis.existingSecret
TOKENMILL_STORAGE_URL: storage.url
TOKENMILL_METRICS_HOST: metrics.port
TOKENMILL_METRICS_PORT: metrics.port
TOKENMILL_API_OPERATOR_KEY: api.operatorKey
FORWARDED_ALLOW_IPS: api.trustedProxies
TOKENMILL_DRAIN_SECONDS: settings.TOKENMILL_DRAIN_SECONDS
HF_TOKEN: hub.existingSecret
TRITON_CACHE_DIR: defaults.cacheClaim
TORCHINDUCTOR_CACHE_DIR: defaults.cacheClaim
{{- end }}

{{/* Takes at and env. */}}
{{- define "tokenmill.checkEnvironment" -}}
{{- $reserved := include "tokenmill.reserved" . | fromYaml -}}
{{- $seen := list -}}
{{- range .env -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (hasKey $reserved .name) "text"
  (printf "%s.env sets %s, which comes from %s. Set that instead." $.at .name (get $reserved .name))) -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (has .name $seen) "text"
  (printf "%s.env sets %s twice. Leave one of them out." $.at .name)) -}}
{{- $seen = append $seen .name -}}
{{- end -}}
{{- end }}

{{- define "tokenmill.checkScaling" -}}
{{- $keda := .values.keda -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and $keda.enabled (not $keda.existingSecret)) "text"
  "keda.enabled is true, and keda.existingSecret is empty. Name a Secret with the connection of the role that may ask for numbers of workers.") -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and $keda.enabled (not .values.models)) "text"
  "keda.enabled is true, and models is empty: nothing would be scaled. Add a model.") -}}
{{- $names := dict -}}
{{- range $key, $_ := .values.models -}}
{{- $name := (include "tokenmill.model" (dict "root" $.root "key" $key) | fromYaml).name -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (and $keda.enabled (hasKey $names $name)) "text"
  (printf "models.%s.name and models.%s.name are %s, and keda.enabled is true: each would get the workers that both need. Scale only one, in a release of its own." (get $names $name) $key $name)) -}}
{{- $_ := set $names $name $key -}}
{{- end -}}
{{- end }}
