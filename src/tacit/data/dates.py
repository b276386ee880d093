"""Times as people write them: numbers since 1970 in any unit, ISO dates, days and months in either order."""

import polars as pl

from tacit.errors import UserError

_ISO = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f%#z")
_OTHERS = (
    "%Y/%m/%d", "%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S", "%Y.%m.%d", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
    "%d-%b-%Y", "%d %b %Y %H:%M", "%d %b %Y %H:%M:%S", "%m %d, %Y", "%a %b %d %H:%M:%S %Y", "%d/%b/%Y:%H:%M:%S %z",
    "%a, %d %b %Y %H:%M:%S %z",
)  # fmt: skip
_DAY_AND_MONTH = (
    r"^(?<first>\d{1,2})(?<sign>[/.-])(?<second>\d{1,2})[/.-](?<year>\d{4}|\d{2})"
    r"(?:,?[ T]+(?<hour>\d{1,2}):(?<minute>\d{2})(?::(?<second_of>\d{2}))? ?(?<half>[AaPp][Mm])?)?$"
)
_UNITS = {"nanoseconds": (1e17, 1e9), "microseconds": (1e14, 1e6), "milliseconds": (1e11, 1e3)}  # from, in a second
PROBLEM = "is neither a number nor a date such as 2026-01-31T12:00:00"


def seconds(column: pl.Series, pattern: str | None = None) -> tuple[pl.Series, str]:
    """Seconds since 1970, null where a time cannot be read, and what was recognised; empty: nothing worth mentioning.

    Dates without a zone are in UTC. Numbers too large for seconds are milliseconds and so on.
    """
    if pattern is not None:
        return _by(column.cast(pl.String).str.strip_chars(), pattern), f"times are read as {pattern}"
    if column.dtype.is_numeric():
        return _scaled(column.cast(pl.Float64))
    if column.dtype in (pl.Date, pl.Datetime):
        return column.dt.timestamp("us") / 1e6, ""
    text = column.cast(pl.String).str.strip_chars()
    numbers = text.cast(pl.Float64, strict=False)
    if numbers.null_count() <= text.null_count():
        return _scaled(numbers)
    iso = _iso(text)
    if iso.null_count() <= text.null_count() or iso.null_count() < numbers.null_count():
        return iso, ""
    read, said = _day_and_month(text)
    if read.null_count() > len(text) // 2:
        for pattern in _OTHERS:
            tried = _by(text, pattern)
            if tried.null_count() < read.null_count():
                read, said = tried, f"times are dates such as {text.drop_nulls()[0]}, read as {pattern}"
    return (read, said) if read.null_count() < numbers.null_count() else (numbers, "")


def _scaled(numbers: pl.Series) -> tuple[pl.Series, str]:
    numbers = numbers.set(~numbers.is_finite().fill_null(True), None)
    middle = numbers.median()
    for unit, (least, each) in _UNITS.items():
        if isinstance(middle, float) and middle >= least:
            return numbers / each, f"times are {unit} since 1970"
    return numbers, ""


def _by(text: pl.Series, pattern: str) -> pl.Series:
    zone = "UTC" if "%z" in pattern or "%#z" in pattern else None
    try:
        days = not any(letter in pattern for letter in ("%H", "%I", "%M", "%T", "%X", "%c", "%s"))
        if days:
            return text.str.to_date(pattern, strict=False).cast(pl.Datetime("us")).dt.timestamp("us") / 1e6
        return text.str.to_datetime(pattern, time_unit="us", strict=False, time_zone=zone).dt.timestamp("us") / 1e6
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--time-format '{pattern}' cannot be used ({reason}); write it as in %d/%m/%Y %H:%M"
        ) from error


def _iso(text: pl.Series) -> pl.Series:
    text = text.str.replace(" ", "T", literal=True)
    micros = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(text))
    for pattern in _ISO:
        if micros.null_count() <= text.null_count():
            break
        parsed = text.str.to_datetime(pattern, time_unit="us", strict=False).dt.timestamp("us")
        micros = micros.zip_with(micros.is_not_null(), parsed)
    return micros / 1e6


def _day_and_month(text: pl.Series) -> tuple[pl.Series, str]:
    """31/12/2011 and 12/31/2011, with a time or without; which is which must show somewhere in the column."""
    parts = text.str.extract_groups(_DAY_AND_MONTH).struct.unnest()
    first, second = (parts[name].cast(pl.Int32) for name in ("first", "second"))
    there = first.is_not_null()
    if not there.any():
        return pl.Series([None], dtype=pl.Float64).new_from_index(0, len(text)), ""
    shown = text.filter(there)[0]
    by_day, by_month = int((first > 12).sum()), int((second > 12).sum())
    dots = parts["sign"].drop_nulls()[0] == "."
    if not by_day and not by_month and not dots:
        raise UserError(
            f"times such as '{shown}' may have the day or the month first; name it: --time-format '%d/%m/%Y…' or "
            "'%m/%d/%Y…', with %H:%M or %H:%M:%S behind where there is a time of day"
        )
    day_first = dots or by_day >= by_month
    day, month = (first, second) if day_first else (second, first)
    year, hour, half = parts["year"].cast(pl.Int32), parts["hour"].cast(pl.Int32).fill_null(0), parts["half"]
    table = pl.DataFrame(
        {
            "year": year.zip_with(year > 99, year + (year < 70).cast(pl.Int32) * 100 + 1900),
            "month": month,
            "day": day,
            "hour": hour.zip_with(half.is_null(), hour % 12 + half.str.to_lowercase().eq("pm").cast(pl.Int32) * 12),
            "minute": parts["minute"].cast(pl.Int32).fill_null(0),
            "second": parts["second_of"].cast(pl.Int32).fill_null(0),
        }
    )
    written = table.select(
        pl.format("{}-{}-{}T{}:{}:{}", *(pl.col(c).cast(pl.String).str.zfill(2) for c in table.columns))
    ).to_series()
    order = "day" if day_first else "month"
    return _by(written, "%Y-%m-%dT%H:%M:%S"), f"times are dates such as {shown}, with the {order} first"
