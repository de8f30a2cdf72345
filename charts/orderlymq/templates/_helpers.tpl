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

{{- /* What pods of the restricted profile must say, and what our image allows. */}}
{{- define "orderlymq.podSecurity" -}}
runAsNonRoot: true
{{ include "orderlymq.podUsers" . }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* Where the chart's pods run; nothing of it unless it is asked for. */}}
{{- define "orderlymq.placement" -}}
{{- range $name := list "priorityClassName" "nodeSelector" "affinity" "tolerations" }}
{{- with index $.Values $name }}
{{ dict $name . | toYaml }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The Cluster of `helm test` runs where the chart's pods run, and as whom. */}}
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

{{- /* The namespaces that are served, by commas: its own unless others are named; "*" for all. */}}
{{- define "orderlymq.served" -}}
{{- if has "*" .Values.watchNamespaces -}}*
{{- if gt (len .Values.watchNamespaces) 1 }}
{{- fail "watchNamespaces: * serves all namespaces; leave the others out, or leave out *" }}
{{- end }}
{{- else -}}
{{- join "," (default (list .Release.Namespace) .Values.watchNamespaces) -}}
{{- end -}}
{{- end }}

{{- /* Images that Pipelines may name beside the operator's own. */}}
{{- define "orderlymq.pipelineImages" -}}
{{- $allowed := .Values.pipelines.allowedImages -}}
{{- if not (kindIs "slice" $allowed) -}}
{{- else if empty $allowed -}}*
{{- else -}}
{{- join "," $allowed -}}
{{- end -}}
{{- end }}

{{- /* What the operator may do where it serves custom resources. */}}
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
