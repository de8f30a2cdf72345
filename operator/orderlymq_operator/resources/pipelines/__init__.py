"""
Manifests of pipelines.

`plan.pipelines` decides how a pipeline runs, and `orderlymq_spark` does its work. Begin with `pipeline`; `jobtypes`
has the fields of each type, `spark` the settings of Spark.
"""
