"""From a loan application to the model's FP32 feature row; standard library only.

The digest of this file stands in meaning.json, so it is part of what is signed: whoever replays a
decision from the original application can use exactly the code that prepared it. Sex and marital
status, age and the foreign-worker flag never reach the model; ``slices`` gives them to the accuracy
report, so that one can see how the model treats people it was not told about.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack, unpack

# Number -> (column, what one unit of the feature stands for). Divisors keep values near 0..5.
NUMBERS = {
    "duration_years": ("duration_in_month", 12.0),
    "amount_thousand_dm": ("credit_amount", 1000.0),
    "installment_rate": ("installment_rate_in_percentage_of_disposable_income", 1.0),
    "residence_since": ("present_residence_since", 1.0),
    "credits_at_this_bank": ("number_of_existing_credits_at_this_bank", 1.0),
    "people_maintained": ("number_of_people_being_liable_to_provide_maintenance_for", 1.0),
}

# Column -> its levels; one feature a level, 1 when the application names it.
LEVELS = {
    "status_of_existing_checking_account": (
        "no checking account",
        "... < 0 DM",
        "0 <= ... < 200 DM",
        "... >= 200 DM / salary assignments for at least 1 year",
    ),
    "credit_history": (
        "no credits taken/ all credits paid back duly",
        "all credits at this bank paid back duly",
        "existing credits paid back duly till now",
        "delay in paying off in the past",
        "critical account/ other credits existing (not at this bank)",
    ),
    "purpose": (
        "car (new)",
        "car (used)",
        "furniture/equipment",
        "radio/television",
        "domestic appliances",
        "repairs",
        "education",
        "retraining",
        "business",
        "others",
    ),
    "savings_account_and_bonds": (
        "unknown/ no savings account",
        "... < 100 DM",
        "100 <= ... < 500 DM",
        "500 <= ... < 1000 DM",
        "... >= 1000 DM",
    ),
    "present_employment_since": (
        "unemployed",
        "... < 1 year",
        "1 <= ... < 4 years",
        "4 <= ... < 7 years",
        "... >= 7 years",
    ),
    "other_debtors_or_guarantors": ("none", "co-applicant", "guarantor"),
    "property": (
        "real estate",
        "building society savings agreement/ life insurance",
        "car or other, not in attribute Savings account/bonds",
        "unknown / no property",
    ),
    "other_installment_plans": ("none", "bank", "stores"),
    "housing": ("rent", "own", "for free"),
    "job": (
        "unemployed/ unskilled - non-resident",
        "unskilled - resident",
        "skilled employee / official",
        "management/ self-employed/ highly qualified employee/ officer",
    ),
    "telephone": ("none", "yes, registered under the customers name"),
}

FEATURES = (*NUMBERS, *(f"{column} = {level}" for column, levels in LEVELS.items() for level in levels))


def features(applicant: Mapping[str, str]) -> list[float]:
    """Feature row in the order of ``FEATURES``, each value exact in FP32.

    Raises:
        ValueError: A field is missing, is no number, or names an unknown level.
    """
    row = [_number(applicant, column, unit) for column, unit in NUMBERS.values()]
    for column, levels in LEVELS.items():
        row += _one_of(applicant, column, levels)
    return row


def encode(applicant: Mapping[str, str]) -> bytes:
    """The row as little-endian FP32: what goes into a binary request and what the ledger commits to."""
    row = features(applicant)
    return pack(f"<{len(row)}f", *row)


def slices(applicant: Mapping[str, str]) -> dict[str, str]:
    """What the model is not told, for the accuracy report."""
    age = int(applicant["age_in_years"])
    return {
        "sex": applicant["personal_status_and_sex"].partition(":")[0].strip(),
        "age": "under 26" if age < 26 else "26 to 40" if age <= 40 else "over 40",
        "foreign_worker": applicant["foreign_worker"],
    }


def _number(applicant: Mapping[str, str], column: str, unit: float) -> float:
    try:
        value = float(_field(applicant, column)) / unit
    except ValueError as error:
        raise ValueError(f"{column}: expected a number, got {applicant.get(column)!r:.80}") from error
    (single,) = unpack("<f", pack("<f", value))
    return float(single)


def _one_of(applicant: Mapping[str, str], column: str, levels: tuple[str, ...]) -> list[float]:
    value = _field(applicant, column)
    if value not in levels:
        raise ValueError(f"{column}: expected one of {', '.join(map(repr, levels))}, got {value!r:.80}")
    return [float(value == level) for level in levels]


def _field(applicant: Mapping[str, str], column: str) -> str:
    if column not in applicant:
        raise ValueError(f"{column}: expected a value, got none")
    return str(applicant[column])
