//! Reads the rows of one object in a stream, with `lua/operator/of_object.lua`.
//!
//! One call of the script looks at few rows, because each row may be large.

use redis::Value;
use redis::aio::ConnectionLike;

use super::rows::Fields;
use super::{ControlError, Cursor, reply};
use crate::keys::Keys;
use crate::wire;

/// Maximum number of rows at which one call of the script looks.
const PER_CALL: u64 = 250;

/// The rows to look for.
pub(super) struct Search<'a> {
    /// The key of the stream.
    pub stream: &'a str,
    /// The object.
    pub object: &'a [u8],
    /// Whether the search goes from newer to older rows.
    pub newest: bool,
    /// Maximum number of rows to look at.
    pub looked_max: u64,
    /// Maximum number of rows of the object to find.
    pub found_max: usize,
    /// Whether the search ends when it has read about 1 MiB.
    pub ends_by_bytes: bool,
    /// The fields to return, each with the maximum number of bytes of its value; 0 for whole
    /// values.
    pub fields: &'a [(&'a str, usize)],
}

/// The result of a search.
#[derive(Default)]
pub(super) struct Found {
    /// The rows of the object, in the order of the search. Each has its object, and for a cut field
    /// `NAME` also `NAME_bytes`, the length of the whole value.
    pub rows: Vec<reply::Entry>,
    /// Number of rows that were looked at.
    pub looked: u64,
    /// Id of the last row that was looked at; none if there was no row.
    pub last: Option<String>,
    /// Whether the search has reached the end of the stream.
    pub complete: bool,
    /// The error of Redis if the key is not a stream. Then no row was read.
    pub wrong_type: Option<ControlError>,
}

impl Found {
    /// Returns the cursor that leads on from the last row that was looked at.
    pub(super) fn next(&self) -> Option<Cursor> {
        self.last
            .as_deref()
            .filter(|_| !self.complete)
            .map(Cursor::from)
    }
}

impl Search<'_> {
    /// Looks for the rows. Begins after the row `after`; without `after`, at the first row.
    pub(super) async fn run<C: ConnectionLike>(
        &self,
        conn: &mut C,
        keys: &Keys,
        after: Option<&str>,
    ) -> Result<Found, ControlError> {
        const WHAT: &str = "lua/operator/of_object.lua";
        let (command, begin) = if self.newest {
            ("XREVRANGE", "+")
        } else {
            ("XRANGE", "-")
        };
        let fields: Vec<String> = self
            .fields
            .iter()
            .map(|(field, bytes_max)| format!("{field}:{bytes_max}"))
            .collect();
        let fields = fields.join(" ");
        let mut from = after.map_or_else(|| begin.to_owned(), reply::behind);
        let mut found = Found::default();
        while found.looked < self.looked_max && found.rows.len() < self.found_max {
            let (count, most) = (
                PER_CALL.min(self.looked_max - found.looked),
                self.found_max - found.rows.len(),
            );
            let mut ask = wire::OF_OBJECT.invoke();
            ask.key(self.stream)
                .arg(keys.prefix())
                .arg(self.object)
                .arg(command)
                .arg(&from);
            ask.arg(format!("{count} {most}")).arg(&fields);
            let mut reply = match reply::ask(conn, WHAT, &ask, "of_object").await {
                Err(error) if error.is_wrong_type() => {
                    return Ok(Found {
                        complete: true,
                        wrong_type: Some(error),
                        ..found
                    });
                }
                reply => reply?,
            };
            let (looked, last, is_cut) = (reply.count()?, reply.text()?, reply.count()? > 0);
            let rows = reply.rest().into_iter().map(|row| self.row(row));
            let rows: Option<Vec<reply::Entry>> = rows.collect();
            let rows = rows.ok_or_else(|| ControlError::reply(WHAT, "a row is not values"))?;
            found.looked += looked;
            found.rows.extend(rows);
            if looked > 0 {
                from = reply::behind(&last);
                found.last = Some(last);
            }
            if !is_cut && looked < count && found.rows.len() < self.found_max {
                return Ok(Found {
                    complete: true,
                    ..found
                });
            }
            if is_cut && self.ends_by_bytes {
                break;
            }
        }
        Ok(found)
    }

    fn row(&self, item: Value) -> Option<reply::Entry> {
        let mut values = reply::array(item)?.into_iter();
        let id = reply::text(&values.next()?)?;
        let mut fields = vec![("object".to_owned(), self.object.to_vec())];
        for ((name, _), value) in self.fields.iter().zip(values) {
            match value {
                Value::Nil => {}
                Value::Array(pair) => {
                    let [value, whole_bytes] = <[Value; 2]>::try_from(pair).ok()?;
                    fields.push(((*name).to_owned(), reply::bytes(&value)?));
                    fields.push((format!("{name}_bytes"), reply::bytes(&whole_bytes)?));
                }
                value => fields.push(((*name).to_owned(), reply::bytes(&value)?)),
            }
        }
        Some((id, Fields(fields)))
    }
}
