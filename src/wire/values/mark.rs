//! A mark: a marker with a time.

/// The name of a mark among the markers: a NUL, `t`, and a time in ms since the epoch. No object
/// has such a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The time at which the mark was pushed.
    pub ms: u64,
}

/// The member of `event.marks` whose score is the time of the mark that workers met last, or a time
/// at which no marker waited.
pub const MET: &str = "met";

impl Mark {
    /// Reads the name of a marker. Returns `None` if the marker is no mark.
    pub fn read(name: &[u8]) -> Option<Self> {
        let digits = name
            .strip_prefix(b"\0t")
            .filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
        std::str::from_utf8(digits)
            .ok()?
            .parse()
            .ok()
            .map(|ms| Self { ms })
    }

    /// Returns the name of the mark.
    pub fn name(self) -> String {
        format!("\0t{}", self.ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_and_other_names_are_none() {
        let mark = Mark {
            ms: 1_767_268_800_250,
        };
        assert_eq!(Mark::read(mark.name().as_bytes()), Some(mark));
        for name in [
            &b""[..],
            b"\0",
            b"\0t",
            b"t17",
            b"\0t17 ",
            b"\0t-1",
            b"\0tx",
            b"work:1",
            b"\0t\xff",
        ] {
            assert_eq!(Mark::read(name), None, "{name:?}");
        }
    }
}
