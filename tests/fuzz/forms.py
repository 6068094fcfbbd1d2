# SPDX-License-Identifier: Apache-2.0
"""Forms of files and messages: bytes to a structure of lists, dicts, scalars.

A changed structure gets past the first parser, which most changed bytes do
not.
"""

import json
import typing
from xml.sax import saxutils

from lxml import etree
import yaml


class Form(typing.Protocol):
    """A form that an input has."""

    def loads(self, content: bytes) -> object:
        """Return the structure.

        :raises Exception: if the content has another form
        """

    def dumps(self, value: object) -> bytes:
        """Return the content; it may be invalid for other structures."""


class Json:
    loads = staticmethod(json.loads)

    @staticmethod
    def dumps(value: object) -> bytes:
        return json.dumps(value, default=str).encode()


class Yaml:
    """A list of documents, which are written as JSON: that is YAML, too."""

    loader = yaml.CSafeLoader

    @classmethod
    def loads(cls, content: bytes) -> object:
        return [*yaml.load_all(content, cls.loader)]

    @staticmethod
    def dumps(value: object) -> bytes:
        documents = value if isinstance(value, list) else [value]
        return b'\n---\n'.join(map(Json.dumps, documents))


class YamlTexts(Yaml):
    """The same, with texts in place of numbers."""

    loader = yaml.CBaseLoader


class Xml:
    """Each element is a list: tag, attributes, and texts or elements."""

    @classmethod
    def loads(cls, content: bytes) -> object:
        return cls._list(etree.fromstring(content))

    @classmethod
    def dumps(cls, value: object) -> bytes:
        return cls._element(value).encode(errors='surrogatepass')

    @classmethod
    def _list(cls, element) -> list:
        declared = {f'xmlns:{prefix}': uri
                    for prefix, uri in element.nsmap.items()
                    if element.getparent() is None}
        found = [cls._name(element), {**declared, **element.attrib},
                 element.text or '']
        for child in element.iterchildren(etree.Element):
            found += [cls._list(child), child.tail or '']
        return found

    @staticmethod
    def _name(element) -> str:
        name = etree.QName(element).localname
        return f'{element.prefix}:{name}' if element.prefix else name

    @classmethod
    def _element(cls, value) -> str:
        match value:
            case [str(tag), dict(attributes), *content]:
                written = ''.join(f' {key}={saxutils.quoteattr(str(text))}'
                                  for key, text in attributes.items())
                inner = ''.join(map(cls._element, content))
                return f'<{tag}{written}>{inner}</{tag}>'
        return saxutils.escape(str(value))
