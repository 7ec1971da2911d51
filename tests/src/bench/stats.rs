//! Medians and percentiles. Single figures are noisy, so these are compared instead.

use std::time::Duration;

/// Returns the median; of an even count, the mean of the two middle values.
pub fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

/// Returns the smallest sample that `hundredth` percent of the samples do not exceed.
pub fn percentile(samples: &[f64], hundredth: usize) -> f64 {
    let sorted = sorted(samples);
    let place = (sorted.len() * hundredth).div_ceil(100).max(1) - 1;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

/// Returns the median of the ratios of samples taken side by side, which cancels out drift of the machine.
pub fn median_ratio(above: &[f64], below: &[f64]) -> f64 {
    let ratios: Vec<f64> = above.iter().zip(below).map(|(above, below)| above / below).collect();
    median(&ratios)
}

/// Returns a duration in microseconds.
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Returns a count or a size as a floating-point number.
#[allow(clippy::cast_precision_loss, reason = "figures of a bench are far below 2^52")]
pub fn float(number: u64) -> f64 {
    number as f64
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::float_cmp, reason = "these are exact")]
    fn median_and_percentiles_are_computed() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        let hundred: Vec<f64> = (1..=100_u32).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 99), 99.0);
        assert_eq!(percentile(&hundred, 100), 100.0);
        assert_eq!(percentile(&[7.0], 99), 7.0);
        assert_eq!(median_ratio(&[2.0, 4.0, 9.0], &[1.0, 2.0, 3.0]), 2.0);
    }
}
