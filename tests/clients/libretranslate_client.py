#!/usr/bin/env python3
"""Checks a running metrale server that translates between English and Spanish, with LibreTranslate's own client.

    python tests/clients/libretranslate_client.py http://127.0.0.1:8000 GOLDEN.json

The translations must be those that golden.json records. Exit status 0 if every check passed.
"""
import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

from libretranslatepy import LibreTranslateAPI

ISO = {"eng_Latn": "en", "spa_Latn": "es"}
problems = []


def check(what: str, found, expected) -> None:
    if found != expected:
        problems.append(what)
    print(f"{'ok  ' if found == expected else 'FAIL'}  {what}" + ("" if found == expected else f": {found!r}, expected {expected!r}"))


def post(url: str, body: dict):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def cases(golden: dict) -> list:
    """(source text, source language, target language, recorded sentence)"""
    return [
        (sentence["source"], *(ISO[code] for code in direction.split("->")), sentence)
        for direction, sentences in golden["directions"].items()
        for sentence in sentences
    ]


def check_translations(client: LibreTranslateAPI, all_cases: list) -> None:
    for source, from_code, to_code, sentence in all_cases:
        check(f"{from_code} to {to_code}: {source[:40]}", client.translate(source, from_code, to_code), sentence["greedy_text"])


def check_languages(client: LibreTranslateAPI) -> None:
    check("languages", [language["code"] for language in client.languages()], ["en", "es"])
    check("detect", client.detect("The king sent messengers to the city.")[0]["language"], "en")


def check_lists(url: str, all_cases: list) -> None:
    """All texts of a direction in one request, with four beams; and both directions in one, told apart by their language."""
    for pair in {(from_code, to_code) for _, from_code, to_code, _ in all_cases}:
        of_pair = [case for case in all_cases if case[1:3] == pair]
        body = {"q": [case[0] for case in of_pair], "source": pair[0], "target": pair[1], "num_beams": 4}
        found = post(f"{url}/translate", body)["translatedText"]
        check(f"{pair}: a list with four beams", found, [case[3]["beam_text"] for case in of_pair])
    texts = [case[0] for case in all_cases]
    together = post(f"{url}/translate", {"q": texts, "source": "auto", "target": "es"})
    sources = [found["language"] for found in together["detectedLanguage"]]
    alone = [post(f"{url}/translate", {"q": q, "source": s, "target": "es"})["translatedText"] for q, s in zip(texts, sources)]
    check("a list of mixed languages is as each alone", together["translatedText"], alone)


def check_errors(client: LibreTranslateAPI) -> None:
    try:
        client.translate("hello", "en", "xx")
        check("an unknown language", "an answer", "400")
    except urllib.error.HTTPError as error:
        check("an unknown language", (error.code, list(json.load(error))), (400, ["error"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("golden", type=Path)
    arguments = parser.parse_args()
    client = LibreTranslateAPI(arguments.url)
    all_cases = cases(json.loads(arguments.golden.read_text()))
    check_languages(client)
    check_translations(client, all_cases)
    check_lists(arguments.url, all_cases)
    check_errors(client)
    print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
