"""Capture: a production program writes down what it does, for `mmgrpo ingest` to read without loss.

One import, no service, nothing needed but pyarrow (`pip install --no-deps . pyarrow`, in a clone):

    from pipeline.capture import Capture

    capture = Capture("traces/", policy="…", logprob_kind="processed")
    client = capture.openai(OpenAI(base_url="http://localhost:8000/v1"), tokens=True)
    with capture.run(inputs={"question": question}) as run:
        with run.module("write"):
            answer = client.chat.completions.create(model="base", messages=messages)
        run.output(answer.choices[0].message.content)
        run.score("thumbs", 1.0)

Capturing never makes the program fail or wait: what goes wrong with it is counted (`capture.counts`) and logged. Who
exports OpenTelemetry spans already adds `otel_attributes(…)` to those of LM calls instead.
"""

from pipeline.capture.otel import otel_attributes
from pipeline.capture.recorder import Capture
from pipeline.capture.runs import Run

__all__ = ["Capture", "Run", "otel_attributes"]
