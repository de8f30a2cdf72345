"""
Manifests of pipelines.

How a pipeline runs is decided in `plan.pipelines`, what it does in `orderlymq_spark`.
Begin with `pipeline`; `jobtypes` has the fields of each job, `spark` its settings.
"""
