export const kb = (n) => `${(n / 1000).toFixed(1)} kB`;
