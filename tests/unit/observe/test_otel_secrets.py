"""What is said of variables of OpenTelemetry that cannot be used: never what they say, which may be a key."""

import pytest

from shigoto import DeclarationError, Traces
from shigoto.observe.otel import Spans, endpoint_of

WRONG = "ops:hunter2@collector:4318"


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"])
def test_an_endpoint_that_is_no_address_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """S22: the SDK would log it with every batch."""
    monkeypatch.setenv(variable, WRONG)
    with pytest.raises(DeclarationError, match="OTEL_EXPORTER_OTLP_ENDPOINT") as of_variable:
        endpoint_of(Traces(), "metrics")
    with pytest.raises(DeclarationError) as of_code:
        endpoint_of(Traces(endpoint=WRONG), "metrics")

    assert "hunter2" not in f"{of_variable.value} {of_code.value}"
    assert endpoint_of(Traces(endpoint="http://a:1/"), "metrics") == "http://a:1/v1/metrics"


def test_addresses_are_left_to_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", WRONG)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "HTTPS://collector/v1/traces")

    assert endpoint_of(Traces(), "traces") is None


def test_spans_are_made_but_not_sent_to_what_is_no_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", WRONG)
    spans = Spans(Traces(), rules=False)
    with spans.tracer.start_as_current_span("run"):
        pass
    spans.flush(1)

    assert "Spans are not sent" in caplog.text
    assert "hunter2" not in caplog.text
