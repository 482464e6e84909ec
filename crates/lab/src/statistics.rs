//! The median and other statistics of measured values.

/// Returns the middle value, or the mean of the two middle values; `None` for an empty list.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    let lower = if sorted.len() % 2 == 1 {
        upper
    } else {
        *sorted.get(half.checked_sub(1)?)?
    };
    Some((lower + upper) / 2.0)
}

/// Returns the percentile: the smallest value such that `percent` percent of all values are not
/// larger.
pub fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let sorted = sorted(values);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// Returns the smallest and the largest value; `None` for an empty list.
pub fn spread(values: &[f64]) -> Option<(f64, f64)> {
    let sorted = sorted(values);
    Some((*sorted.first()?, *sorted.last()?))
}

/// Computes for each repetition the ratio of its two values, and returns the median of these
/// ratios. A disturbance of the machine affects both values of a repetition, so their ratio is
/// stable.
pub fn ratio(values: &[f64], others: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = values
        .iter()
        .zip(others)
        .map(|(value, other)| value / other)
        .filter(|r| r.is_finite())
        .collect();
    median(&ratios)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 2.0, 4.0]), Some(3.0));
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 50.0), Some(100.0));
        assert_eq!(percentile(&values, 99.0), Some(198.0));
        assert_eq!(percentile(&values, 100.0), Some(200.0));
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(percentile(&[7.0], 99.0), Some(7.0));
        assert_eq!(percentile(&[], 99.0), None);
    }

    #[test]
    fn ratios_are_taken_repetition_by_repetition() {
        assert_eq!(ratio(&[1.0, 10.0, 4.0], &[2.0, 20.0, 1.0]), Some(0.5));
        assert_eq!(ratio(&[1.0, 2.0], &[0.0, 2.0]), Some(1.0));
        assert_eq!(ratio(&[1.0], &[]), None);
    }
}
