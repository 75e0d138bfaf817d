//! Aggregation: the rules, the geometric median above all, and the symmetric matrices that they are given.

mod geometric_median;
mod reference;
mod rules;
mod symmetric;
#[path = "../shared/uniform.rs"]
mod uniform;
mod whitened;
