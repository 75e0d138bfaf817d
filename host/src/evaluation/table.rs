//! Text of an evaluation.

use std::fmt::Write;

use super::{Evaluation, RARE};

/// Formats an evaluation as tables: estimates by policy, then the overlap, then warnings.
pub fn text_table(evaluation: &Evaluation) -> String {
    let Evaluation { events, actions, dimension, features, scale, logged, logged_error, policies } = evaluation;
    let features = features.map_or_else(|| format!("more than {dimension}, hashed"), |features| features.to_string());
    let mut text = format!("{events} events, up to {actions} actions, d = {dimension} (features: {features})");
    if *scale < 1.0 {
        let _ = write!(text, ", divided by {:.4}", 1.0 / scale);
    }
    let _ = write!(text, "\nlogging policy: mean reward {}", number(Some(*logged)));
    if let Some(error) = logged_error {
        let _ = write!(text, " ± {}", number(Some(1.96 * error)));
    }
    let _ = writeln!(text, "\n\n  policy   estimator      value  95 % interval           effective events");
    for value in policies {
        for estimate in &value.estimates {
            let interval = match (estimate.low, estimate.high) {
                (Some(low), Some(high)) => format!("[{}, {}]", number(Some(low)), number(Some(high))),
                _ => "–".into(),
            };
            let (policy, estimator) = (value.policy, estimate.estimator);
            let (worth, effective) = (number(estimate.value), estimate.effective);
            let _ = writeln!(text, "  {policy:<8} {estimator:<9} {worth:>10}  {interval:<22} {effective:>17.0}");
        }
    }
    let _ =
        writeln!(text, "\n  policy   mean weight  largest  share of top 1 %  least propensity  choices below {RARE}");
    for value in policies {
        let overlap = &value.overlap;
        let _ = writeln!(
            text,
            "  {:<8} {:>11.3} {:>8.2} {:>15.1} % {:>17.5} {:>17.1} %",
            value.policy,
            overlap.mean_weight,
            overlap.max_weight,
            100.0 * overlap.top_share,
            overlap.min_propensity,
            100.0 * overlap.rare_share
        );
    }
    for (index, (policy, warning)) in
        policies.iter().flat_map(|value| value.warnings.iter().map(move |warning| (value.policy, warning))).enumerate()
    {
        let _ = writeln!(text, "{}warning: {policy}: {warning}", if index == 0 { "\n" } else { "" });
    }
    text
}

/// Formats a value with four decimals, or with four digits if it is large or small.
fn number(value: Option<f64>) -> String {
    match value {
        None => "–".into(),
        Some(value) if value != 0.0 && !(1e-2..1e5).contains(&value.abs()) => format!("{value:.3e}"),
        Some(value) => format!("{value:.4}"),
    }
}
