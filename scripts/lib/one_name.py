"""A name server on 127.0.0.1 that knows one name: the argument is 127.0.0.1 there. Other names do not exist."""

import socket
import sys

KNOWN = sys.argv[1].encode()
ADDRESS_RECORD = 1

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
while True:
    query, peer = server.recvfrom(512)
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]])
        at += 1 + query[at]
    question = query[12 : at + 5]
    known = b".".join(labels) == KNOWN
    answer = b""
    if known and int.from_bytes(question[-4:-2], "big") == ADDRESS_RECORD:
        # The name at offset 12, class IN, 60 s, 4 bytes.
        answer = b"\xc0\x0c\x00\x01\x00\x01" + (60).to_bytes(4, "big") + b"\x00\x04" + bytes([127, 0, 0, 1])
    flags = 0x8180 if known else 0x8183
    header = query[:2] + flags.to_bytes(2, "big") + b"\x00\x01" + bool(answer).to_bytes(2, "big") + b"\x00\x00\x00\x00"
    server.sendto(header + question + answer, peer)
