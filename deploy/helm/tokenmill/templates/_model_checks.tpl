{{/* These take at, model, values and found. */}}
{{- define "tokenmill.checkModel" -}}
{{- $model := .model -}}
{{- include "tokenmill.error" (dict "found" .found "if" (not (or $model.path $model.url $model.claim)) "text"
  (printf "%s.path and %s.url are empty. Give a model or a server of one." .at .at)) -}}
{{- $isHub := regexMatch "^[^/@]+/[^/@]+(@[^@]+)?$" $model.path -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and $model.path (not $model.claim) (not $isHub)) "text"
  (printf "%s.path is %s, no id of the hub, and %s.claim is empty. Name the claim that has it, or an id as org/model." .at $model.path .at)) -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and $model.spot (not (or .values.spot.nodeSelector .values.spot.tolerations))) "text"
  (printf "%s.spot is true, and spot.nodeSelector and spot.tolerations are empty. Say which nodes may go." .at)) -}}
{{- if $model.spot -}}
{{- include "tokenmill.checkGrace" (dict "values" .values "found" .found "at" "spot" "grace" .values.spot.graceSeconds "drain" .values.spot.drainSeconds) -}}
{{- else -}}
{{- include "tokenmill.checkGrace" (dict "values" .values "found" .found "at" .at "grace" $model.graceSeconds) -}}
{{- end -}}
{{- end }}

{{/* Options of the other kind of engine. */}}
{{- define "tokenmill.checkEngine" -}}
{{- $model := .model -}}
{{- $ofServer := dict "serverModel" $model.serverModel "tokenizer" $model.tokenizer "keySecret.existingSecret" $model.keySecret.existingSecret -}}
{{- $ofOwn := dict "path" $model.path "claim" $model.claim "chatTemplate" $model.chatTemplate "gpus" $model.gpus -}}
{{- range $name, $value := ternary $ofOwn $ofServer (ne $model.url "") -}}
{{- include "tokenmill.error" (dict "found" $.found "if" $value "text" (ternary
  (printf "%s.%s and %s.url are set: a server has its own model and devices. Leave one of them out." $.at $name $.at)
  (printf "%s.%s is set, and %s.url is empty: our own engine needs none. Give the server's URL, or leave it out." $.at $name $.at)
  (ne $model.url ""))) -}}
{{- end -}}
{{- $serverOptions := list "max-concurrency" "answer-seconds" "spill" "spill-budget" "input-price" "output-price" -}}
{{- range $option, $_ := $model.options -}}
{{- $isOfServer := has $option $serverOptions -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (and $isOfServer (not $model.url)) "text"
  (printf "%s.options.%s is for servers, and %s.url is empty. Leave it out." $.at $option $.at)) -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (and $model.url (not $isOfServer) (ne $option "max-model-len")) "text"
  (printf "%s.options.%s is for our own engine, and %s.url is set. Set it at the server." $.at $option $.at)) -}}
{{- end -}}
{{- range $amount := list "spill-budget" "input-price" "output-price" -}}
{{- $isSpill := hasKey $model.options "spill" -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (and $model.url $isSpill (not (hasKey $model.options $amount))) "text"
  (printf "%s.options.spill is true, and %s.options.%s is not set. Set what the server may cost." $.at $.at $amount)) -}}
{{- include "tokenmill.error" (dict "found" $.found "if" (and $model.url (not $isSpill) (hasKey $model.options $amount)) "text"
  (printf "%s.options.%s is set, and %s.options.spill is not. Set spill, or leave it out." $.at $amount $.at)) -}}
{{- end -}}
{{- $device := get $model.options "device" | toString -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and (hasPrefix "cuda" $device) (not $model.gpus)) "text"
  (printf "%s.options.device is %s and %s.gpus is 0. Give it a GPU." .at $device .at)) -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and (eq $device "cpu") $model.gpus) "text"
  (printf "%s.options.device is cpu and %s.gpus is 1, which would be idle. Leave one of them out." .at .at)) -}}
{{- end }}

{{- define "tokenmill.checkReplicas" -}}
{{- $model := .model -}}
{{- $most := get $model "maxReplicas" | default 0 | int -}}
{{- $hasMost := hasKey $model "maxReplicas" -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and $hasMost (not .values.keda.enabled)) "text"
  (printf "%s.maxReplicas is %d and keda.enabled is false: %s.minReplicas run. Leave it out, or enable KEDA." .at $most .at)) -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and (not $hasMost) .values.keda.enabled) "text"
  (printf "keda.enabled is true, and %s.maxReplicas is not set. Set the most workers that may run." .at)) -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and $hasMost (lt $most (int $model.minReplicas))) "text"
  (printf "%s.minReplicas is %d and %s.maxReplicas is %d. Lower the first or raise the second." .at (int $model.minReplicas) .at $most)) -}}
{{- end }}

{{- define "tokenmill.checkEgress" -}}
{{- $model := .model -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and $model.egress (not .values.networkPolicy.egress)) "text"
  (printf "%s.egress is set, and networkPolicy.egress is empty, so that nothing is limited. Set both or neither." .at)) -}}
{{- $goesOut := or $model.url $model.tokenizer (and $model.path (not $model.claim)) -}}
{{- include "tokenmill.error" (dict "found" .found "if" (and .values.networkPolicy.egress $goesOut (not $model.egress)) "text"
  (printf "networkPolicy.egress is set, and %s.egress is empty: the worker could not reach %s. Allow it there." .at ($model.url | default (printf "the hub for %s" ($model.path | default $model.tokenizer))))) -}}
{{- end }}
