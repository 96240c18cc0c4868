// Lets os.networkInterfaces() of Node.js answer where the C library can't list interfaces: commands of skilld have no
// netlink sockets, and the call would throw. NODE_OPTIONS of the image loads this file before every program.
'use strict';

const os = require('node:os');

const list = os.networkInterfaces;
os.networkInterfaces = () => {
    try {
        return list();
    } catch {
        const address = '127.0.0.1', netmask = '255.0.0.0', mac = '00:00:00:00:00:00';
        return { lo: [{ address, netmask, family: 'IPv4', mac, internal: true, cidr: `${address}/8` }] };
    }
};
// For programs that import the name.
require('node:module').syncBuiltinESMExports();
