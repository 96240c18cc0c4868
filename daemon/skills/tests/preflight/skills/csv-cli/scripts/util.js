let color;
try {
  color = require('supports-color');
} catch (error) {
  color = null;
}
/* require("not-really") */
exports.first = (rows) => rows[0];
exports.text = "const x = require('quoted')";
