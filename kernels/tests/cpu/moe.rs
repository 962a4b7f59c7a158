//! Biases of experts; routing and products are compared with the reference through whole models.

use metrale_kernels::KernelError;
use metrale_kernels::cpu::moe::add_expert_bias;

use super::support::{Rng, cpus};

#[test]
fn every_pair_gets_the_bias_of_its_expert() {
    for cpu in &cpus(&[1, 2]) {
        let mut rng = Rng::new(3);
        let (num_experts, width) = (5, 37);
        let (bias, before) = (rng.vec(num_experts * width), rng.vec(9 * width));
        let experts: Vec<u32> = (0..9).map(|_| rng.below(num_experts) as u32).collect();
        let mut out = before.clone();
        add_expert_bias(cpu, &bias, &experts, &mut out).unwrap();
        for (i, (found, before)) in out.iter().zip(&before).enumerate() {
            let expert = experts[i / width] as usize;
            assert_eq!(*found, before + bias[expert * width + i % width]);
        }
    }
}

#[test]
fn an_expert_that_does_not_exist_is_refused() {
    for cpu in &cpus(&[1, 2]) {
        let error = add_expert_bias(cpu, &[0.0; 4], &[0, 2], &mut [0.0; 4]).unwrap_err();
        assert!(matches!(error, KernelError::Index { position: 1, found: 2, limit: 2, .. }), "{error}");
    }
}
