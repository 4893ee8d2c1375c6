/** Numbers and words. */

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** A number with a few digits; very small and very large ones as powers of ten. */
export function show(value: number, digits = 3): string {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "not a number";
  if (value === 0) return "0";
  const exponent = Math.floor(Math.log10(Math.abs(value)));
  if (exponent >= -3 && exponent < 5) return sign(`${Number(value.toPrecision(digits))}`);
  const [mantissa, power] = value.toExponential(Math.max(0, digits - 2)).split("e") as [
    string,
    string,
  ];
  const raised = power
    .replace("+", "")
    .replace("-", "⁻")
    .replace(/\d/g, (k) => RAISED[Number(k)]!);
  const short = `${Number(mantissa)}`;
  return short === "1" ? `10${raised}` : `${sign(short)}\u00a0×\u00a010${raised}`;
}

const sign = (number: string): string => number.replace("-", "−");

/** A whole number with thin spaces between thousands. */
export const count = (value: number): string =>
  `${Math.round(value)}`.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");

export const plural = (value: number, one: string, many = `${one}s`): string =>
  `${count(value)} ${value === 1 ? one : many}`;
