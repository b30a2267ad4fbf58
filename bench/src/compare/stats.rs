//! What several rounds come to: a median and how far they were apart.

/// The middle and the ends of what was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Of at least one value.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        Some(Self { median, min, max })
    }
}

/// The value that so many of a thousand values do not exceed; 0 if there are none.
pub(super) fn per_mille(sorted: &[f64], mille: usize) -> f64 {
    let rank = (sorted.len() * mille).div_ceil(1000).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middles() {
        let odd = Spread::of([5.0, 1.0, 3.0]).unwrap();
        assert_eq!(odd, Spread { median: 3.0, min: 1.0, max: 5.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 9.0]).unwrap().median, 3.0);
        assert_eq!(Spread::of([7.0]), Some(Spread { median: 7.0, min: 7.0, max: 7.0 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn per_mille_are_values_that_were_seen() {
        let values: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(per_mille(&values, 500), 500.0);
        assert_eq!(per_mille(&values, 999), 999.0);
        assert_eq!(per_mille(&values, 1000), 1000.0);
        assert_eq!(per_mille(&[3.0], 999), 3.0);
        assert_eq!(per_mille(&[], 500), 0.0);
    }
}
