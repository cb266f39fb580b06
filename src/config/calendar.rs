//! Looks up the kinds of calendar windows and the time zones by their names.

use crate::config::suggest::suggest;
use crate::engine::algorithm::calendar::{CalendarUnit, Zone};
use crate::engine::id::Excerpt;
use crate::engine::limit_error::LimitError;

/// Returns the kind of calendar windows with this name.
///
/// # Errors
/// [`LimitError::UnknownUnit`] if there is none.
pub fn unit(name: &str) -> Result<CalendarUnit, LimitError> {
    let unit = CalendarUnit::ALL.into_iter().find(|unit| unit.as_str() == name);
    unit.ok_or_else(|| LimitError::UnknownUnit { found: Excerpt::new(name) })
}

/// Returns the time zone with this name; case is ignored.
///
/// # Errors
/// [`LimitError::UnknownZone`] if there is none; it names the most similar one.
pub fn zone(name: &str) -> Result<Zone, LimitError> {
    Zone::named(name).ok_or_else(|| {
        let city = |zone: &&str| {
            zone.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(name))
        };
        let nearest = Zone::names().find(city).or_else(|| suggest(name, Zone::names()));
        LimitError::UnknownZone { found: Excerpt::new(name), nearest }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_zone_is_named() {
        for (found, expected) in [
            ("Europe/Berln", Some("Europe/Berlin")),
            ("Berlin", Some("Europe/Berlin")),
            ("america/new york", Some("America/New_York")),
            ("Asia/Calcuta", Some("Asia/Calcutta")),
            ("Mars/Olympus", None),
            ("", None),
        ] {
            let Err(LimitError::UnknownZone { nearest, .. }) = zone(found) else {
                panic!("{found} is a zone")
            };
            assert_eq!(nearest, expected, "{found}");
        }
        assert_eq!(zone("europe/berlin").map(Zone::name), Ok("Europe/Berlin"));
    }
}
