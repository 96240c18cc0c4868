export const local: number = 1;
