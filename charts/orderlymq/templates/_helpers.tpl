{{- define "orderlymq.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "orderlymq.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "orderlymq.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "orderlymq.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "orderlymq.selector" -}}
app.kubernetes.io/name: {{ include "orderlymq.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "orderlymq.labels" -}}
{{ include "orderlymq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "orderlymq.serviceAccount" -}}
{{- default (include "orderlymq.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "orderlymq.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{- define "orderlymq.sparkImage" -}}
{{- printf "%s:%s" .Values.pipelines.image.repository (default .Chart.AppVersion .Values.pipelines.image.tag) }}
{{- end }}

{{- /* What pods of the restricted profile must say, and what our image allows. */}}
{{- define "orderlymq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "orderlymq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* What the operator may do where it serves custom resources. */}}
{{- define "orderlymq.namespaceRules" -}}
- apiGroups: [orderlymq.io]
  resources: ["*"]
  verbs: ["*"]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, update, patch, delete]
# Drivers of Pipelines that end.
- apiGroups: [batch]
  resources: [jobs, cronjobs]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, watch, create, update, patch, delete]
# Brokers label their own pod; who hands a right on must have it.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
# Pods that are replaced leave as their disruption budget allows.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [get]
{{- if .Values.pipelines.executors }}
# Drivers of Pipelines make executors; who hands a right on must have it.
- apiGroups: [""]
  resources: [pods, services, configmaps, persistentvolumeclaims]
  verbs: [get, list, watch, create, update, patch, delete, deletecollection]
{{- end }}
{{- if .Values.pipelines.sparkApplications }}
- apiGroups: [sparkoperator.k8s.io]
  resources: [sparkapplications]
  verbs: [get, list, watch, create, update, patch, delete]
{{- end }}
# Secrets of User and spec.tls are read; the one that signs the operator's own requests is made.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [""]
  resources: [endpoints]
  verbs: [get, list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
# Kubelets tell in events that they end a container.
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [list, create, patch]
{{- end }}

{{- define "orderlymq.releaseHook" -}}
helm.sh/hook: post-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "orderlymq.releaseRules" -}}
- apiGroups: [orderlymq.io]
  resources: ["*"]
  verbs: [get, list, watch, update, patch]
{{- end }}

{{- define "orderlymq.testHook" -}}
helm.sh/hook: test
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
