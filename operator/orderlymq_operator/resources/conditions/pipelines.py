"""The reasons that only conditions of Pipelines give."""

from typing import Final

from orderlymq_operator.resources.conditions.reason import PIPELINE, READY, Reason

REASONS: Final = (
    Reason(
        "FindingsFound",
        (PIPELINE,),
        READY,
        "False",
        "An audit has ended with findings; the message says which.",
        "Read the file of spec.findings; it names the places where the order is broken.",
    ),
    Reason(
        "DriverFailed",
        (PIPELINE,),
        READY,
        "False",
        "The last run failed; the message is its error. Finished work is not lost.",
        "Repair what the message names. A stream or a Job starts again by itself; a run that has given up starts again when "
        "its spec changes.",
    ),
    Reason(
        "PreviousDriverTerminating",
        (PIPELINE,),
        READY,
        "False",
        "The driver of the previous spec is ending; two drivers must not work on one checkpoint.",
        "If this lasts, look at the pod that the message names.",
    ),
    Reason(
        "DefinitionMissing",
        (PIPELINE,),
        READY,
        "False",
        "The backend sparkApplication needs Kubeflow's definition of SparkApplication, which is not installed.",
        "Install Kubeflow's Spark operator, or choose another backend; the operator notices either within a minute.",
    ),
    Reason(
        "DefinitionTooOld",
        (PIPELINE,),
        READY,
        "False",
        "Kubeflow's definition of SparkApplication lacks fields that the operator needs; the message names them. The API "
        "server would drop them, and a suspended Pipeline would run.",
        "Install the definitions of Kubeflow's Spark operator 2.4 or newer; the operator notices them within a minute.",
    ),
)
