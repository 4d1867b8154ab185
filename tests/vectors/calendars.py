#!/usr/bin/env python3
"""Writes calendars.txt: windows of calendars, by Python's datetime and zoneinfo.

    python3 -m pip install tzdata
    tests/vectors/calendars.py > tests/vectors/calendars.txt

The package tzdata has the time zone database, whose version is written into the file. A window
begins at the first second at which the clocks of the zone show its start or a later time; that
second is found by reading the clocks and not by an inverse of the zone's rules. Numbers count units
from the year 0.
"""

from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo, reset_tzpath

import tzdata

# Not the files of the machine.
reset_tzpath([])

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]

# Days around which the clocks of a zone change, or do something unusual. Both hemispheres, several
# years, half hours, changes at midnight, skipped days.
CHANGES = {
    "Europe/Berlin": [
        "1980-04-06",
        "1980-09-28",
        "1996-10-27",
        "2024-02-29",
        "2026-03-29",
        "2026-10-25",
        "2027-03-28",
        "2036-10-26",
        "2048-03-29",
        "2099-10-25",
    ],
    "Europe/London": ["1971-10-31", "2025-03-30", "2025-10-26"],
    "Europe/Dublin": ["2026-03-29", "2026-10-25"],
    "Europe/Istanbul": ["2015-11-08", "2016-09-07"],
    "Europe/Moscow": ["2011-03-27", "2014-10-26"],
    "America/New_York": [
        "1987-04-05",
        "2007-03-11",
        "2007-11-04",
        "2026-03-08",
        "2026-11-01",
        "2040-03-11",
        "2400-11-05",
    ],
    "America/Los_Angeles": ["1974-01-06", "2026-03-08", "2026-11-01"],
    "America/St_Johns": ["1988-04-03", "2006-10-29", "2010-03-14", "2010-11-07", "2026-11-01"],
    "America/Sao_Paulo": ["2016-02-21", "2017-10-15", "2018-02-18", "2018-11-04", "2019-02-17"],
    "America/Havana": ["2012-04-01", "2012-11-04", "2026-03-08", "2026-11-01"],
    "America/Asuncion": ["2023-03-26", "2023-10-01"],
    "America/Santiago": ["2015-04-26", "2022-09-11", "2026-04-05", "2026-09-06"],
    "America/Caracas": ["2007-12-09", "2016-05-01"],
    "America/Scoresbysund": ["2023-10-29", "2024-03-31"],
    "Atlantic/Azores": ["1993-03-28", "2026-03-29", "2026-10-25"],
    "Africa/Cairo": ["2010-08-11", "2014-05-16", "2023-04-28", "2023-10-27"],
    "Africa/Casablanca": ["2018-10-28", "2025-02-23", "2025-04-06", "2087-05-11", "2088-06-01"],
    "Africa/Monrovia": ["1972-01-07"],
    "Asia/Beirut": ["2022-03-27", "2026-03-29", "2026-10-25"],
    "Asia/Tehran": ["2022-03-22", "2022-09-22"],
    "Asia/Amman": ["2021-10-29", "2022-02-25"],
    "Asia/Gaza": ["2010-03-27", "2011-04-01", "2011-08-01", "2012-09-21"],
    "Asia/Kolkata": ["2026-06-01"],
    "Asia/Kathmandu": ["1986-01-01"],
    "Asia/Pyongyang": ["2015-08-15", "2018-05-05"],
    "Australia/Sydney": ["2000-08-27", "2008-04-06", "2026-04-05", "2026-10-04", "2050-10-02"],
    "Australia/Lord_Howe": ["1985-03-03", "2026-04-05", "2026-10-04"],
    "Australia/Eucla": ["2026-06-01"],
    "Antarctica/Troll": ["2026-03-29", "2026-10-25"],
    "Antarctica/Casey": ["2009-10-18", "2010-03-05"],
    "Pacific/Auckland": ["2026-04-05", "2026-09-27"],
    "Pacific/Chatham": ["2026-04-05", "2026-09-27"],
    "Pacific/Apia": ["2010-09-26", "2011-12-30", "2012-04-01"],
    "Pacific/Kwajalein": ["1993-08-21"],
    "Pacific/Kiritimati": ["1994-12-31"],
    "Pacific/Tongatapu": ["2016-11-06", "2017-01-15"],
    "Pacific/Marquesas": ["2026-06-01"],
    "UTC": ["1970-01-01", "2000-02-28", "2026-11-23", "2100-02-28"],
    "Etc/GMT+12": ["1970-01-01", "2026-06-01"],
}

# Anchors for each unit; `-` for none.
ANCHORS = {
    "day": ["-", "2020-01-01T02:30", "2020-01-01T23:45:30"],
    "week": ["-", "sunday", "2021-01-09T00:30"],
    "month": ["-", "2026-03-31", "2025-12-30T12:00", "2024-06-29T00:15"],
    "quarter": ["-", "2026-11-30", "2026-02-15T06:30", "2024-01-31T23:45:30"],
    "year": ["-", "2024-02-29", "2024-12-31T18:00", "2026-07-01"],
}


def days_in_month(year, month):
    following = date(year + month // 12, month % 12 + 1, 1)
    return (following - DAY).day


def shows(zone, second):
    """The time on the clocks."""
    return (EPOCH + timedelta(seconds=second)).astimezone(zone).replace(tzinfo=None, fold=0)


def first_second(zone, local):
    """The first second at which the clocks show this time or a later one."""
    # No zone is more than 15 hours ahead of UTC. Clocks that are set back after a minute show that
    # minute in two of these steps.
    second = (local - datetime(1970, 1, 1)) // SECOND - 15 * 3600
    for step in (30, 1):
        while shows(zone, second) < local:
            second += step
        second -= step
    return second + 1


def begins(unit, start, around):
    """The local begins of the windows around a day, with the number of the first."""
    text, _, time = start.partition("T")
    hour, minute, second = (
        ([int(part) for part in time.split(":")] + [0, 0, 0])[:3] if time else (0, 0, 0)
    )
    anchor = date.fromisoformat(text) if text[:1].isdigit() else None
    at = lambda day: datetime(day.year, day.month, day.day, hour, minute, second)
    if unit == "day":
        days = [around + k * DAY for k in range(-2, 4)]
        return days[0].toordinal() + 365, [at(day) for day in days]
    if unit == "week":
        weekday = anchor.weekday() if anchor else WEEKDAYS.index(text) if text != "-" else 0
        first = around - ((around.weekday() - weekday) % 7) * DAY - 7 * DAY
        return (first.toordinal() + 365) // 7, [at(first + 7 * k * DAY) for k in range(4)]
    if unit == "month":
        day, first = anchor.day if anchor else 1, 12 * around.year + around.month - 2
        months = [divmod(first + k, 12) for k in range(4)]
        return first, [
            at(date(year, month + 1, min(day, days_in_month(year, month + 1))))
            for year, month in months
        ]
    month, day = (anchor.month, anchor.day) if anchor else (1, 1)
    if unit == "quarter":
        offset = (month - 1) % 3
        first = (12 * around.year + around.month - 1 - offset) // 3 - 1
        months = [divmod(3 * (first + k) + offset, 12) for k in range(4)]
        return first, [
            at(date(year, month + 1, min(day, days_in_month(year, month + 1))))
            for year, month in months
        ]
    years = range(around.year - 1, around.year + 3)
    return years[0], [at(date(year, month, min(day, days_in_month(year, month)))) for year in years]


def main():
    version = tzdata.IANA_VERSION
    print(
        "# Windows of calendars. Written by calendars.py beside this file, from Python's zoneinfo"
        f" and version {version} of the time zone database."
    )
    print(
        "# unit | timezone | week_starts or anchor | number of the first window | begins of windows"
        " that follow each other, in seconds since 1970"
    )
    for name, days in CHANGES.items():
        zone = ZoneInfo(name)
        for unit, anchors in ANCHORS.items():
            for anchor in anchors:
                seen = set()
                for day in days:
                    number, local = begins(unit, anchor, date.fromisoformat(day))
                    if number in seen:
                        continue
                    seen.add(number)
                    seconds = [first_second(zone, begin) for begin in local]
                    # Time begins with 1970.
                    while len(seconds) > 1 and seconds[0] < 0:
                        seconds, number = seconds[1:], number + 1
                    print(f"{unit} | {name} | {anchor} | {number} | {' '.join(map(str, seconds))}")


main()
