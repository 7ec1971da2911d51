//! Numbers that look random and are always the same for the same input: `SplitMix64` (Steele, Lea, Flood: Fast
//! Splittable Pseudorandom Number Generators, 2014).

/// The step from one state of the generator to the next.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the number for a state. Different states have different numbers.
#[must_use]
pub const fn mix(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_reference_implementation() {
        let states = [STEP, STEP.wrapping_mul(2)];
        assert_eq!(states.map(mix), [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }
}
