"""What a manifest says of pipelines: begin with `pipeline`; `jobtypes` has each job's fields, `spark` its settings."""
