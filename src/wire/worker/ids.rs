//! Two types of opaque text: the cursor of a list, and the id of a row.
//!
//! Neither text has a documented form. You may store it, show it, send it to a client and accept it
//! back. Do not parse or build it. A later version may change the form, e.g. for a namespace of
//! several partitions.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! opaque {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, text: &str) -> bool {
                self.0 == text
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, text: &&str) -> bool {
                self.0 == *text
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        /// Accepts any text. If the text is invalid, the operation that uses the value returns an
        /// error.
        impl FromStr for $name {
            type Err = Infallible;

            fn from_str(text: &str) -> Result<Self, Infallible> {
                Ok(Self(text.to_owned()))
            }
        }
    };
}

opaque! {
    /// A position in a list, from which the next page is read. It comes from the page before, from
    /// a row by [`Cursor::from`], or from a time by [`Cursor::since`].
    ///
    /// Opaque text, for one list in one order. Another list refuses it, or takes it for another
    /// position. It stays valid when rows are added or removed.
    Cursor
}

opaque! {
    /// The id of a dead letter, of a row of the event log, or of an action.
    ///
    /// Opaque text that identifies one row. All ids of dead letters in a namespace differ; likewise
    /// all ids of log rows, and all ids of actions.
    RowId
}

impl Cursor {
    /// Returns the position in the event log before all events that were finalized at the time `ms`
    /// (since the epoch) or later. None for 0, because reading from the beginning needs no cursor.
    pub fn since(ms: u64) -> Option<Self> {
        ms.checked_sub(1)
            .map(|before| Self(format!("{before}-{}", u64::MAX)))
    }
}

/// The position after a row in a list of dead letters, log rows or actions, in the direction in
/// which the list is read.
impl From<&RowId> for Cursor {
    fn from(row: &RowId) -> Self {
        Self(row.0.clone())
    }
}

impl AsRef<str> for RowId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_text_in_json_and_on_the_command_line() {
        let row: RowId = "1700-0".parse().expect("any text");
        assert_eq!(
            (row.to_string(), serde_json::to_string(&row).expect("JSON")),
            ("1700-0".to_owned(), r#""1700-0""#.to_owned())
        );
        assert_eq!(
            serde_json::from_str::<Cursor>(r#""1700-0""#).expect("any text"),
            Cursor::from(&row)
        );
        assert!(row == "1700-0" && row.as_str() == "1700-0");
    }

    #[test]
    fn a_time_is_a_place_before_all_its_rows() {
        assert_eq!(Cursor::since(0), None);
        assert_eq!(
            Cursor::since(2000),
            Some(Cursor::from("1999-18446744073709551615"))
        );
    }
}
