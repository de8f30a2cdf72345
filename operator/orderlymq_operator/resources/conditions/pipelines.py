"""The reasons that only conditions of Pipelines give."""

from typing import Final

from orderlymq_operator.resources.conditions.reason import PIPELINE, READY, Reason

REASONS: Final = (
    Reason(
        "FindingsFound",
        (PIPELINE,),
        READY,
        "False",
        "An audit has ended and has found something; the message says what.",
        "Look at spec.findings; the order is broken at the places that stand there.",
    ),
    Reason(
        "DriverFailed",
        (PIPELINE,),
        READY,
        "False",
        "The last run failed; the message is its error. Nothing that was finished is lost.",
        "Repair what the message names. A stream and a Job begin again by themselves; a run that has "
        "given up does so when its task changes.",
    ),
    Reason(
        "PreviousDriverTerminating",
        (PIPELINE,),
        READY,
        "False",
        "The driver of the previous spec is ending; two must not work on one checkpoint.",
        "If it stays: look at the pod that is named.",
    ),
    Reason(
        "DefinitionMissing",
        (PIPELINE,),
        READY,
        "False",
        "The backend sparkApplication needs Kubeflow's definition of SparkApplication, which is not there.",
        "Install Kubeflow's Spark operator, or choose another backend; either is noticed within a minute.",
    ),
    Reason(
        "DefinitionTooOld",
        (PIPELINE,),
        READY,
        "False",
        "Kubeflow's definition of SparkApplication lacks fields that are needed; the API server would drop them, and "
        "a suspended Pipeline would run. The message names them.",
        "Install the definitions of Kubeflow's Spark operator 2.4 or newer; noticed within a minute.",
    ),
)
