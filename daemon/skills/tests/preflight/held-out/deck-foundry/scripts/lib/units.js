exports.pxToIn = (px) => Math.round((px / 96) * 1000) / 1000;
exports.inToEmu = (n) => Math.round(n * 914400);
