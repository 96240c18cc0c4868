const fs = require('fs');
const path = require('path');

// require('left-over') was used here once
exports.readSlides = (folder) =>
  fs.readdirSync(folder).map((name) => ({ svg: fs.readFileSync(path.join(folder, name)) }));
