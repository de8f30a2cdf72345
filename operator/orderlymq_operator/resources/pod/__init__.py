"""What users add to pods: begin with `template`; each other module has some of its parts."""
