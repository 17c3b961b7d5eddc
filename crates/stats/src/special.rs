//! Distribution functions that the standard library lacks: normal, Student's t, chi-square, F, incomplete beta.

use std::f64::consts::PI;

/// Distribution function of the standard normal.
///
/// By erfc through the series and the continued fraction of the error function (Abramowitz and Stegun 7.1.6
/// and 7.1.14); relative error below 1e-13, in the tails too.
pub(crate) fn normal_cdf(z: f64) -> f64 {
    if z.is_nan() {
        return f64::NAN;
    }
    let x = z.abs();
    let upper = if x < 2.5 { 0.5 - normal_centre(x) } else { normal_tail(x) };
    if z > 0.0 { 1.0 - upper } else { upper }
}

/// P(0 < Z < x) as phi(x) (x + x^3/3 + x^5/15 + ...); all terms are positive, so nothing cancels.
fn normal_centre(x: f64) -> f64 {
    let mut term = x;
    let mut sum = x;
    let mut k = 1.0;
    while term > sum * 1e-17 {
        k += 2.0;
        term *= x * x / k;
        sum += term;
    }
    sum * normal_density(x)
}

/// P(Z > x) for large x, phi(x) / (x + 1/(x + 2/(x + ...))), evaluated from the far end.
fn normal_tail(x: f64) -> f64 {
    let fraction = (1..=200).rev().fold(x, |f, k| x + f64::from(k) / f);
    normal_density(x) / fraction
}

fn normal_density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
}

/// Quantile of the standard normal: the z with `normal_cdf(z) == p`. -inf at 0, +inf at 1.
///
/// Bisection down to the resolution of f64: slower than a rational approximation and nothing to get wrong.
pub(crate) fn normal_quantile(p: f64) -> f64 {
    if p <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if p >= 1.0 {
        return f64::INFINITY;
    }
    // The lower tail is the accurate one.
    if p > 0.5 {
        return -normal_quantile(1.0 - p);
    }
    bisect(-39.0, 0.0, |z| normal_cdf(z) < p)
}

/// Upper quantile of Student's t: the t > 0 with P(T > t) = `tail`, for a tail in 0..0.5
/// (Abramowitz and Stegun 26.7.1).
pub(crate) fn student_upper(tail: f64, df: f64) -> f64 {
    let x = beta_quantile(2.0 * tail, 0.5 * df, 0.5);
    (df * (1.0 / x - 1.0)).sqrt()
}

/// P(F > f) for the F distribution with `d1` and `d2` degrees of freedom (Abramowitz and Stegun 26.6.2).
pub(crate) fn f_upper_tail(f: f64, d1: f64, d2: f64) -> f64 {
    beta_cdf(d2 / (d2 + d1 * f), 0.5 * d2, 0.5 * d1)
}

/// Upper quantile of the F distribution: the f with P(F > f) = `tail`, for a tail in 0..1.
pub(crate) fn f_upper(tail: f64, d1: f64, d2: f64) -> f64 {
    let x = beta_quantile(tail, 0.5 * d2, 0.5 * d1);
    d2 * (1.0 / x - 1.0) / d1
}

/// Upper quantile of the chi-square distribution: the x with P(X > x) = `tail`, for a tail in 0..1.
pub(crate) fn chi_square_upper(tail: f64, df: f64) -> f64 {
    // Far beyond any quantile: ten standard deviations, and a constant for few degrees of freedom.
    let most = df + 14.2 * df.sqrt() + 100.0;
    bisect(0.0, most, |x| chi_square_cdf(x, df) < 1.0 - tail)
}

/// Distribution function of chi-square, by the series of the incomplete gamma function (Abramowitz and Stegun 6.5.29 and
/// 26.4.19): all terms are positive, so nothing cancels.
fn chi_square_cdf(x: f64, df: f64) -> f64 {
    let (a, z) = (0.5 * df, 0.5 * x);
    if z <= 0.0 {
        return 0.0;
    }
    let mut term = (a * z.ln() - z - ln_gamma(a + 1.0)).exp();
    let (mut sum, mut next) = (term, a);
    // Terms grow up to z, when the last one is no small part of the sum, and shrink from there on.
    while term > sum * 1e-17 {
        next += 1.0;
        term *= z / next;
        sum += term;
    }
    sum.min(1.0)
}

/// Logarithm of the gamma function for x from 0.5 on (Lanczos' approximation with g = 7 and nine terms;
/// relative error of the gamma function below 1e-14).
fn ln_gamma(x: f64) -> f64 {
    const COEFFICIENTS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let sum =
        COEFFICIENTS.iter().zip(1..).fold(0.999_999_999_999_809_9, |s, (c, k)| s + c / (x + f64::from(k)));
    let t = x + 7.5;
    0.5 * (2.0 * PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// Logarithm of the beta function B(a, b).
///
/// With a large argument ln(gamma(b) / gamma(a + b)) is taken from Stirling's series as one expression, as
/// both terms are many orders of magnitude larger than their difference.
fn ln_beta(a: f64, b: f64) -> f64 {
    let (a, b) = (a.min(b), a.max(b));
    if b < 10.0 {
        return ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b);
    }
    let rest = |x: f64| {
        let square = x * x;
        (1.0 / 12.0 - (1.0 / 360.0 - (1.0 / 1260.0 - 1.0 / (1680.0 * square)) / square) / square) / x
    };
    ln_gamma(a) + a - (b - 0.5) * (a / b).ln_1p() - a * (a + b).ln() + rest(b) - rest(a + b)
}

/// Regularised incomplete beta function I_x(a, b): the distribution function of Beta(a, b) at x.
///
/// By the continued fraction of Abramowitz and Stegun 26.5.8 in Lentz's form.
pub(crate) fn beta_cdf(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front = (a * x.ln() + b * (-x).ln_1p() - ln_beta(a, b)).exp();
    // The fraction converges fast only below the mean; the other half follows by symmetry.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(x, a, b) / a
    } else {
        1.0 - front * beta_fraction(1.0 - x, b, a) / b
    }
}

fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    // Lentz: a vanishing denominator is replaced by something tiny.
    let guard = |v: f64| if v.abs() < 1e-300 { 1e-300 } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / guard(1.0 - (a + b) * x / (a + 1.0));
    let mut h = d;
    // Needs about sqrt(max(a, b)) steps; counts of packets reach 1e10.
    for m in 1..1_000_000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / guard(1.0 + even * d);
        c = guard(1.0 + even / c);
        h *= d * c;
        d = 1.0 / guard(1.0 + odd * d);
        c = guard(1.0 + odd / c);
        let step = d * c;
        h *= step;
        if (step - 1.0).abs() < 1e-15 {
            break;
        }
    }
    h
}

/// Quantile of Beta(a, b) for p in 0..=1.
pub(crate) fn beta_quantile(p: f64, a: f64, b: f64) -> f64 {
    if p <= 0.0 {
        return 0.0;
    }
    if p >= 1.0 {
        return 1.0;
    }
    // Over ln x, because a loss ratio of 1e-9 needs its relative precision too.
    bisect(-700.0, 0.0, |ln_x| beta_cdf(ln_x.exp(), a, b) < p).exp()
}

/// The point at which `below` turns from true to false, to the resolution of f64.
fn bisect(mut low: f64, mut high: f64, below: impl Fn(f64) -> bool) -> f64 {
    loop {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            return middle;
        }
        if below(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn near(got: f64, want: f64, relative: f64) {
        assert!((got - want).abs() <= relative * want.abs(), "{got} instead of {want}");
    }

    // All literals from SciPy 1.17.1; the call is named at each table.

    #[test]
    fn normal_distribution_as_scipy() {
        // scipy.special.ndtr(z)
        for (z, p) in [
            (-8.0, 6.22096057427174e-16),
            (-3.0, 0.0013498980316300933),
            (-1.96, 0.024997895148220435),
            (-0.5, 0.3085375387259869),
            (0.0, 0.5),
            (1.0, 0.8413447460685429),
            (2.4, 0.9918024640754038),
            (2.6, 0.9953388119762813),
        ] {
            near(normal_cdf(z), p, 1e-12);
        }
        // scipy.special.ndtri(p)
        for (p, z) in [
            (1e-10, -6.361340902404056),
            (0.0024, -2.8201580593201587),
            (0.025, -1.9599639845400545),
            (0.3, -0.5244005127080409),
            (0.975, 1.959963984540054),
        ] {
            near(normal_quantile(p), z, 1e-12);
        }
        assert_eq!(normal_quantile(0.0), f64::NEG_INFINITY);
        assert_eq!(normal_quantile(1.0), f64::INFINITY);
        assert_eq!(normal_cdf(f64::INFINITY), 1.0);
        assert_eq!(normal_cdf(f64::NEG_INFINITY), 0.0);
    }

    #[test]
    fn student_quantile_as_scipy() {
        // scipy.stats.t.isf(tail, df)
        for (tail, df, t) in [
            (0.025, 5.0, 2.5705818356363155),
            (0.025, 9.0, 2.2621571627982053),
            (0.05, 1.0, 6.313751514675044),
            (0.0001, 30.0, 4.233985957272021),
        ] {
            near(student_upper(tail, df), t, 1e-10);
        }
    }

    #[test]
    fn chi_square_and_f_as_scipy() {
        // scipy.stats.chi2.isf(tail, df)
        for (tail, df, x) in [
            (0.025, 3.0, 9.348403604496147),
            (0.975, 3.0, 0.21579528262389797),
            (0.025, 9.0, 19.022767798641638),
            (0.975, 9.0, 2.7003894999803584),
            (0.975, 1.0, 0.0009820691171752583),
            (0.05, 40.0, 55.75847927888704),
            (0.975, 999.0, 913.3009983021134),
            (0.025, 999.0, 1088.4870677259353),
            (0.001, 20_000.0, 20623.750449079074),
        ] {
            near(chi_square_upper(tail, df), x, 1e-9);
        }
        // scipy.stats.f.sf(f, d1, d2)
        for (f, d1, d2, p) in [
            (3.2, 3.0, 12.0, 0.062277550565349664),
            (0.7, 9.0, 40.0, 0.7049159135824136),
            (12.5, 9.0, 70.0, 1.4394708316448269e-11),
            (1.0, 1.0, 1.0, 0.5),
            (2.5, 3.0, 1e6, 0.05755907827077789),
        ] {
            near(f_upper_tail(f, d1, d2), p, 1e-8);
        }
        // scipy.stats.f.isf(tail, d1, d2)
        for (tail, d1, d2, f) in [
            (0.025, 3.0, 12.0, 4.474184809637748),
            (0.975, 3.0, 12.0, 0.0697517768221775),
            (0.025, 9.0, 70.0, 2.3017290085990636),
            (0.975, 9.0, 70.0, 0.2912893120464424),
            (0.05, 11.0, 11.0, 2.8179304699530854),
        ] {
            near(f_upper(tail, d1, d2), f, 1e-9);
        }
    }

    #[test]
    fn the_logarithm_of_beta_as_mpmath() {
        // mpmath.log(mpmath.beta(a, b)), by 30 digits, on both sides of where the series takes over.
        for (a, b, wanted) in [
            (0.5, 10.0, -0.566_432_796_397_593_9),
            (2.5, 10.0, -5.647_837_161_382_057),
            (40.0, 3.0, -10.446_973_958_541_667),
        ] {
            near(ln_beta(a, b), wanted, 1e-12);
            near(ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b), wanted, 1e-12);
        }
    }

    #[test]
    fn beta_distribution_as_scipy() {
        // scipy.special.betainc(a, b, x)
        for (a, b, x, p) in [
            (2.0, 3.0, 0.4, 0.5247999999999999),
            (0.5, 0.5, 0.1, 0.20483276469913345),
            (100.0, 1e6, 1e-4, 0.5136954152487068),
            (30.0, 2.0, 0.99, 0.9616104854047645),
            (4.0, 9.5, 0.7, 0.9989470794573752),
        ] {
            near(beta_cdf(x, a, b), p, 1e-9);
        }
        // scipy.special.betaincinv(a, b, p)
        for (a, b, p, x) in [
            (2.0, 3.0, 0.025, 0.06758598648854294),
            (1.0, 1e9, 0.025, 2.531780798396938e-11),
            (51.0, 1e6, 0.975, 6.591494626702367e-05),
            (2.5, 0.5, 0.1, 0.5518508004395704),
        ] {
            near(beta_quantile(p, a, b), x, 1e-10);
        }
    }
}
