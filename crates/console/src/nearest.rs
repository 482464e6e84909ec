//! The known word that is most similar to a wrong one, for an error that suggests it.

/// The minimum similarity at which an error suggests a word, from 0 to 1.
const ALIKE: f64 = 0.75;

/// Returns the most similar known word; none if no word has this similarity, from 0 to 1.
pub fn nearest<'a>(
    wrong: &str,
    known: impl Iterator<Item = &'a str>,
    alike: f64,
) -> Option<&'a str> {
    let scored = known.map(|word| (strsim::jaro_winkler(word, wrong), word));
    scored
        .filter(|(score, _)| *score >= alike)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, word)| word)
}

/// Returns the text `; did you mean WORD?` with the most similar known word; an empty text if no
/// word is similar enough.
pub fn hint<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(wrong, known, ALIKE).map_or_else(String::new, |word| format!("; did you mean {word}?"))
}
