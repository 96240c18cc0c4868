const x = require('jest-extended');
