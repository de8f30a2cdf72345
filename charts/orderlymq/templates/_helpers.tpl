{{- define "orderlymq.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "orderlymq.fullname" -}}
{{- $name := include "orderlymq.name" . }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- /* The name of a release may have dots and begin with a digit, that of a Service may not. */}}
{{- $full = regexReplaceAll "^[0-9]" (replace "." "-" $full) "mq-${0}" }}
{{- .Values.fullnameOverride | default $full | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- /* In quotes, like every namespace: YAML would read some names as numbers. */}}
{{- define "orderlymq.selector" -}}
app.kubernetes.io/name: {{ include "orderlymq.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "orderlymq.labels" -}}
{{ include "orderlymq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "orderlymq.serviceAccount" -}}
{{- if and (eq (toString .Values.serviceAccount.create) "false") (not .Values.serviceAccount.name) }}
{{- fail "serviceAccount.create is false: name the account that is there in serviceAccount.name" }}
{{- end }}
{{- default (include "orderlymq.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "orderlymq.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{- define "orderlymq.sparkImage" -}}
{{- printf "%s:%s" .Values.pipelines.image.repository (default .Chart.AppVersion .Values.pipelines.image.tag) }}
{{- end }}

{{- define "orderlymq.pullSecrets" -}}
{{- $names := list }}
{{- range .Values.imagePullSecrets }}
{{- $names = append $names .name }}
{{- end }}
{{- join "," $names }}
{{- end }}

{{- define "orderlymq.podUsers" -}}
{{- range $name, $value := .Values.podSecurityContext }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }}: {{ int64 $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The fields that the restricted profile requires of pods, as far as our image permits them. */}}
{{- define "orderlymq.podSecurity" -}}
runAsNonRoot: true
{{ include "orderlymq.podUsers" . }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* The nodes of the chart's pods; empty without values. */}}
{{- define "orderlymq.placement" -}}
{{- range $name := list "priorityClassName" "nodeSelector" "affinity" "tolerations" }}
{{- with index $.Values $name }}
{{ dict $name . | toYaml }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The podTemplate of the Cluster of `helm test`: the nodes and the user of the chart's pods. */}}
{{- define "orderlymq.testTemplate" -}}
{{- $made := dict "securityContext" (include "orderlymq.podUsers" . | fromYaml) }}
{{- with .Values.podLabels }}
{{- $_ := set $made "labels" . }}
{{- end }}
{{- range $name := list "priorityClassName" "nodeSelector" "tolerations" }}
{{- with index $.Values $name }}
{{- $_ := set $made $name . }}
{{- end }}
{{- end }}
{{- with (.Values.affinity | default dict).nodeAffinity }}
{{- $_ := set $made "affinity" (dict "nodeAffinity" .) }}
{{- end }}
{{- toJson $made }}
{{- end }}

{{- define "orderlymq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* The served namespaces, separated by commas: the release's own unless others are named; "*" for all. */}}
{{- define "orderlymq.served" -}}
{{- if has "*" .Values.watchNamespaces -}}*
{{- if gt (len .Values.watchNamespaces) 1 }}
{{- fail "watchNamespaces: * serves all namespaces; leave the others out, or leave out *" }}
{{- end }}
{{- else -}}
{{- join "," (default (list .Release.Namespace) .Values.watchNamespaces) -}}
{{- end -}}
{{- end }}

{{- /* Images that Pipelines may name in addition to the operator's own. */}}
{{- define "orderlymq.pipelineImages" -}}
{{- $allowed := .Values.pipelines.allowedImages -}}
{{- if not (kindIs "slice" $allowed) -}}
{{- else if empty $allowed -}}*
{{- else -}}
{{- join "," $allowed -}}
{{- end -}}
{{- end }}

{{- /* The operator's rights in the namespaces that it serves. */}}
{{- define "orderlymq.namespaceRules" -}}
{{ .Files.Get "files/rights/namespace.yaml" }}
{{- if .Values.pipelines.executors }}
{{- .Files.Get "files/rights/executors.yaml" }}
{{- end }}
{{- if .Values.pipelines.sparkApplications }}
{{- .Files.Get "files/rights/sparkapplications.yaml" }}
{{- end }}
{{- end }}

{{- define "orderlymq.releaseHook" -}}
helm.sh/hook: post-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "orderlymq.testHook" -}}
helm.sh/hook: test
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
