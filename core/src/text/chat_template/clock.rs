//! `strftime_now`: the current date for templates that print it, in UTC.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The template function.
pub(super) fn strftime_now(format: &str) -> Result<String, Error> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    strftime(seconds, format).map_err(|directive| {
        let message = format!("strftime_now does not know the directive %{directive}");
        Error::new(ErrorKind::InvalidOperation, message)
    })
}

/// Formats seconds since 1970 like Python's `strftime`; the error is the unknown directive.
fn strftime(seconds: u64, format: &str) -> Result<String, String> {
    let days = seconds / 86_400;
    let time = seconds % 86_400;
    let (year, month, day, day_of_year) = civil_date(days);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let weekday = DAYS[((days + 4) % 7) as usize];
    let month_name = MONTHS[month - 1];

    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = rest.next().unwrap_or('%');
        let unpadded = directive == '-';
        if unpadded {
            directive = rest.next().unwrap_or('-');
        }
        let number = |value: u64, width: usize| {
            let width = if unpadded { 1 } else { width };
            format!("{value:0width$}")
        };
        let text = match directive {
            'Y' => year.to_string(),
            'y' => number(year % 100, 2),
            'm' => number(month as u64, 2),
            'd' => number(day, 2),
            'e' if !unpadded => format!("{day:2}"),
            'e' => day.to_string(),
            'j' => number(day_of_year, 3),
            'H' => number(hour, 2),
            'I' => number(hour12, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'B' => month_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            other => return Err(other.to_string()),
        };
        // Writing to a string does not fail.
        let _ = out.write_str(&text);
    }
    Ok(out)
}

/// Year, month (1 to 12), day of the month and day of the year (both from 1) of a day counted from 1970-01-01.
fn civil_date(mut days: u64) -> (u64, usize, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let day_of_year = days + 1;
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_formatted_as_python_does() {
        let format = "%A %a %d %-d %B %b %Y %y %j %H:%M:%S %I %p %F %%";
        assert_eq!(
            strftime(1_709_210_096, format).unwrap(),
            "Thursday Thu 29 29 February Feb 2024 24 060 12:34:56 12 PM 2024-02-29 %"
        );
        assert_eq!(strftime(0, "%d %b %Y %a").unwrap(), "01 Jan 1970 Thu");
        assert_eq!(strftime(1_767_225_599, "%Y-%m-%d %j").unwrap(), "2025-12-31 365");
        assert_eq!(strftime(0, "%Q"), Err("Q".to_owned()));
    }
}
